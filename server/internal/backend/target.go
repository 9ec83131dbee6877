// Package backend opens, from a URL, what the command line needs of a backend: package
// driver/backend with all drivers, and tables where a database needs them.
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

// Names of package driver/backend.
type (
	Options  = backend.LockOptions
	URLError = backend.URLError
	TTLError = backend.TTLError
)

// Target is a backend that was named but not yet reached.
type Target struct{ *backend.URL }

// Parse reads a URL and connects to nothing. Errors are [*URLError].
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

// Close stops renewing and disconnects. What is still held expires.
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

// A View is an open lock service of which nothing is acquired.
type View struct {
	backend.View
	backend *backend.Backend
}

// Close disconnects.
func (v *View) Close(ctx context.Context) error { return v.backend.Close(ctx) }

// View connects to a lock service to look at it, also to one whose locks have no
// tokens and are not for [Target.Locks]. The context bounds the opening only.
func (t Target) View(ctx context.Context, o Options) (*View, error) {
	b, v, err := open(ctx, t, func(b *backend.Backend) (backend.View, error) { return b.View(ctx, o) })
	if err != nil {
		return nil, err
	}
	return &View{v, b}, nil
}

// Values connects to the small values that a lock service keeps under tokens, with a prefix
// before their names; disconnect ends that. Where there are none, v is nil. The context
// bounds the opening only.
func (t Target) Values(ctx context.Context, prefix string) (v driver.Values, disconnect func(), err error) {
	if !t.Has(backend.Values) {
		return nil, func() {}, nil
	}
	b, v, err := open(ctx, t, func(b *backend.Backend) (driver.Values, error) { return b.Values(ctx, prefix) })
	return v, closing(b), err
}

// KeyValues connects to the values that a lock service compares and swaps; one without is
// refused with a [*URLError]. disconnect ends that. The context bounds the opening only.
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

// Participant connects to a participant of two-phase commit, under the name that it
// has with its coordinators; a backend that prepares nothing is refused with a
// [*URLError]. namespace is that of the coordinators' journal; of etcd it is the
// shard's prefix. The context bounds the opening only.
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

// open opens something on a backend, which it closes if that fails.
func open[T any](ctx context.Context, t Target, do func(*backend.Backend) (T, error)) (b *backend.Backend, made T, err error) {
	if b, err = t.Open(ctx); err != nil {
		return nil, made, err
	}
	if made, err = do(b); err != nil {
		closing(b)() // the first error says more
		return nil, made, err
	}
	return b, made, nil
}

// closing disconnects from a backend on which no locks are open.
func closing(b *backend.Backend) func() {
	return func() {
		if b != nil {
			_ = b.Close(context.Background()) // nothing is held
		}
	}
}

// KeepsValues reports, without connecting, whether there are [Target.Values].
func (t Target) KeepsValues() bool { return t.Has(backend.Values) }
