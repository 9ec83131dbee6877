package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// DefaultTTL is the TTL of the lock of [Start]: after a crash, no process sends messages for up to
// that long. After [Running.Close] another process continues at once. The setting ttl of the URL
// replaces it, as in postgres://127.0.0.1/shop?ttl=5s. It is shorter than the default of the drivers
// because losing the lock does no harm: the relay starts again, and its old token cannot settle.
const DefaultTTL = 10 * time.Second

// Running is a relay that runs in this process, or stands by, until it is closed.
type Running struct {
	work    *lock.Running
	locks   *lock.Fenced
	backend *backend.Backend
}

// Start runs a relay for the database of a URL, such as postgres://127.0.0.1/shop. One of the
// processes that call it runs the relay; the others wait for its lock, which is in the same database.
// It creates the table unless it exists. A relay that fails or loses its lock starts again with
// backoff, as by lock.Fenced.Keep; after a crash, another process takes over within [DefaultTTL]. The
// program must import the driver of the URL's scheme (see lock.Open). Start blocks until the database
// has answered; ctx bounds that only.
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
	return &Running{work: work, locks: locks, backend: b}, nil
}

// Ended returns a channel that is closed when the relay has stopped: after Close, or after a
// final error, which Close returns.
func (r *Running) Ended() <-chan struct{} { return r.work.Ended() }

// Close stops the relay, lets a running call of the sink finish within Options.Drain, releases the
// lock, and disconnects. It blocks until then or until ctx ends.
func (r *Running) Close(ctx context.Context) error {
	return errors.Join(r.work.Close(ctx), r.locks.Close(ctx), r.backend.Close(ctx))
}
