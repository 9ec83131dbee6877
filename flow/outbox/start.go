package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// DefaultTTL is how long the lock of [Start] outlives a process that dies: for that long another
// process may send nothing. After [Running.Close] another process goes on at once. The setting ttl
// of the URL replaces it, as in postgres://127.0.0.1/shop?ttl=5s. It is shorter than the default of
// the drivers because a relay that loses its lock starts again, and its token keeps it from settling.
const DefaultTTL = 10 * time.Second

// Running is a relay that runs in this process, or stands by, until Close.
type Running struct {
	relay   *Relay
	work    *lock.Running
	locks   *lock.Fenced
	backend *backend.Backend
}

// Start runs a relay of the database that a URL names, as postgres://127.0.0.1/shop: in one
// of the processes that call it, while the others stand by under a lock in the same database.
// It creates the table unless it exists. A relay that fails, or loses its lock, starts again
// with backoff, as lock.Fenced.Keep does; after a crash, another process takes over within
// [DefaultTTL]. The driver of the URL's scheme has to be part of
// the program (see lock.Open). Start blocks until the database has answered; ctx bounds that
// only. [Running.Close] ends it.
func Start(ctx context.Context, url string, table Table, sink Sink, o *Options) (*Running, error) {
	b, db, err := backend.OpenSQL(ctx, url, table)
	if err != nil {
		return nil, err
	}
	r, err := startOn(ctx, b, db, table, sink, o)
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	return r, nil
}

func startOn(ctx context.Context, b *backend.Backend, db driver.BeginnerAt[driver.SQL], table Table, sink Sink, o *Options) (*Running, error) {
	relay, err := NewRelay(db, table, sink, o)
	if err != nil {
		return nil, err
	}
	var options backend.LockOptions
	if b.URL().Setting("ttl") == "" {
		options.TTL = DefaultTTL
	}
	d, err := b.Fenced(ctx, options)
	if err != nil {
		return nil, err
	}
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		return nil, err
	}
	work := locks.Start("interlock.outbox/"+table.name(), relay.RunAll)
	return &Running{relay: relay, work: work, locks: locks, backend: b}, nil
}

// Relay is the one that runs: for [Relay.Wake].
func (r *Running) Relay() *Relay { return r.relay }

// Ended is closed when the relay runs no more: after Close, or after an error that starting
// again cannot help. Close returns that error.
func (r *Running) Ended() <-chan struct{} { return r.work.Ended() }

// Close stops the relay, lets the sink finish what is under way within Options.Drain, gives
// the lock to another process, and disconnects. It blocks until then or until ctx ends.
func (r *Running) Close(ctx context.Context) error {
	return errors.Join(r.work.Close(ctx), r.locks.Close(ctx), r.backend.Close(ctx))
}
