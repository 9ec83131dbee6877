// Package backend opens backends for the command line from a URL: package driver/backend
// with all drivers, and the tables of databases.
//
//	target, err := backend.Parse("redis://:secret@127.0.0.1:6379/1")
//	locks, err := target.Locks(ctx, backend.Options{TTL: 30 * time.Second})
//	...
//	err = locks.Close(ctx)
package backend

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/consul"
	_ "github.com/interlock-dev/interlock/driver/etcd"
	_ "github.com/interlock-dev/interlock/driver/kube"
	_ "github.com/interlock-dev/interlock/driver/mysql"
	_ "github.com/interlock-dev/interlock/driver/postgres"
	_ "github.com/interlock-dev/interlock/driver/redis"
	_ "github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// Aliases of package driver/backend.
type (
	Options  = backend.LockOptions
	URLError = backend.URLError
	TTLError = backend.TTLError
)

// Target is a backend that is not yet connected.
type Target struct{ *backend.URL }

// Parse parses a URL and does not connect. Errors are [*URLError].
func Parse(raw string) (Target, error) {
	u, err := backend.Parse(raw)
	return Target{u}, err
}

// Locks is an open lock service.
type Locks struct {
	service
	backend *backend.Backend
}

type service = backend.Locks // it has a method Locks

// Close stops renewals and disconnects. Held locks expire.
func (l *Locks) Close(ctx context.Context) error { return l.backend.Close(ctx) }

// Locks connects to a lock service. The context bounds the opening only.
func (t Target) Locks(ctx context.Context, o Options) (*Locks, error) {
	if err := errors.Join(t.CheckFenced(), t.CheckTTL(o.TTL)); err != nil {
		return nil, err
	}
	b, l, err := open(ctx, t, func(b *backend.Backend) (backend.Locks, error) { return b.Fenced(ctx, o) })
	if err != nil {
		return nil, err
	}
	return &Locks{l, b}, nil
}

// A View is an open lock service without acquisitions.
type View struct {
	backend.View
	backend *backend.Backend
}

// Close disconnects.
func (v *View) Close(ctx context.Context) error { return v.backend.Close(ctx) }

// View connects to a lock service to inspect it, also if its locks have no tokens and
// [Target.Locks] fails. The context bounds the opening only.
func (t Target) View(ctx context.Context, o Options) (*View, error) {
	b, v, err := open(ctx, t, func(b *backend.Backend) (backend.View, error) { return b.View(ctx, o) })
	if err != nil {
		return nil, err
	}
	return &View{v, b}, nil
}

// Values connects to the small values of a lock service, with a prefix of their names;
// disconnect closes it. v is nil if it has none. The context bounds the opening only.
func (t Target) Values(ctx context.Context, prefix string) (v driver.Values, disconnect func(), err error) {
	if !t.Has(backend.Values) {
		return nil, func() {}, nil
	}
	b, v, err := open(ctx, t, func(b *backend.Backend) (driver.Values, error) { return b.Values(ctx, prefix) })
	return v, closing(b), err
}

// KeyValues connects to the values for compare-and-swap; a backend without them is a
// [*URLError]. disconnect closes it. The context bounds the opening only.
func (t Target) KeyValues(ctx context.Context, prefix string) (k driver.KeyValues, disconnect func(), err error) {
	b, k, err := open(ctx, t, func(b *backend.Backend) (driver.KeyValues, error) {
		k, ok := b.KeyValues(prefix)
		if !ok {
			return nil, &URLError{Reason: t.Kind() + " has no board of waits; use an etcd://, redis://, postgres://, mysql:// or consul:// URL"}
		}
		return k, nil
	})
	return k, closing(b), err
}

// Participant connects to a participant of two-phase commit, under its name at its
// coordinators; a backend that cannot prepare is a [*URLError]. namespace is the
// namespace of the coordinators' journal, or the shard's prefix in etcd. The context
// bounds the opening only.
func (t Target) Participant(ctx context.Context, name, namespace string) (_ twopc.Defined, disconnect func(), err error) {
	if !t.Has(backend.Participants) {
		return nil, nil, &URLError{Reason: t.Kind() + " prepares no transactions; use a postgres://, mysql:// or etcd:// URL, or http:// of a participant"}
	}
	b, p, err := open(ctx, t, func(b *backend.Backend) (driver.Participant, error) { return b.Participant(ctx, namespace) })
	if err != nil {
		return nil, nil, err
	}
	return twopc.Finisher(name, p), closing(b), nil
}

// open opens a backend and calls do, and closes the backend if do fails.
func open[T any](ctx context.Context, t Target, do func(*backend.Backend) (T, error)) (b *backend.Backend, made T, err error) {
	if b, err = t.Open(ctx); err != nil {
		return nil, made, err
	}
	if made, err = do(b); err != nil {
		closing(b)() // the first error matters
		return nil, made, err
	}
	return b, made, nil
}

// closing returns a function that closes a backend without open locks.
func closing(b *backend.Backend) func() {
	return func() {
		if b != nil {
			_ = b.Close(context.Background()) // nothing is held
		}
	}
}

// KeepsValues reports, without connecting, whether [Target.Values] exist.
func (t Target) KeepsValues() bool { return t.Has(backend.Values) }
