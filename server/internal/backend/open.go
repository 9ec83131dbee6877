package backend

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Options of a connection.
type Options struct {
	// TTL is how long a lock lives without renewal; 0 means the driver's
	// default of 30 s.
	TTL time.Duration
	// Prefix is put before every key or, where the driver knows none, before
	// every name; empty means none.
	Prefix string
	// Seed says where tokens start. Redis takes none: its tokens start at its clock.
	Seed driver.Seed
}

// Viewer shows locks, tells when they change, and takes them away.
type Viewer interface {
	driver.Inspector
	driver.Watcher
	driver.Breaker
}

// Locker is what the command line needs of a lock driver.
type Locker interface {
	driver.Fenced
	Viewer
}

// Locks is an open lock service.
type Locks struct {
	Locker
	disconnect func()
}

// Close stops renewing and disconnects. What is still held expires.
func (l *Locks) Close(ctx context.Context) error {
	defer l.disconnect()
	return l.Locker.Close(ctx)
}

// A View is an open lock service of which nothing is taken.
type View struct {
	Viewer
	close func(context.Context) error
}

// Close disconnects.
func (v *View) Close(ctx context.Context) error { return v.close(ctx) }

// Locks connects to a lock service. The context bounds the opening only.
func (t Target) Locks(ctx context.Context, o Options) (*Locks, error) {
	if err := t.CheckTTL(o.TTL); err != nil {
		return nil, err
	}
	if t.kind == "redis" && o.Seed != (driver.Seed{}) {
		return nil, &URLError{"the tokens of Redis start at the clock of its server, and cannot be moved or repaired"}
	}
	return kinds[t.kind].open(t, ctx, o)
}

// View connects to a lock service to look at it, also to one whose locks have no
// tokens and are not for [Target.Locks]. The context bounds the opening only.
func (t Target) View(ctx context.Context, o Options) (*View, error) {
	switch {
	case t.kind == "redis" && t.mode == "plain":
		return t.redisPlain(ctx, o)
	case t.kind == "kube" && t.mode == "advisory":
		return t.kubeAdvisory(ctx, o)
	}
	l, err := t.Locks(ctx, o)
	if err != nil {
		return nil, err
	}
	return &View{l.Locker, l.Close}, nil
}

// withoutTokens refuses to take the locks of a mode.
func withoutTokens(mode string) error {
	return &URLError{"locks of ?mode=" + mode + " have no token, so that no guard can refuse what a late holder writes: " +
		"they can be listed, shown and released here, not taken; leave mode out for locks with tokens"}
}

// opened is a driver together with what has to be closed after it; with an error
// that is done at once.
func opened(d Locker, err error, disconnect func()) (*Locks, error) {
	if err != nil {
		disconnect()
		return nil, err
	}
	return &Locks{d, disconnect}, nil
}

func nothing() {}
