package compare

import (
	"context"
	"time"
)

// Held is a lock that a client holds.
type Held interface {
	// Release releases the lock.
	Release(ctx context.Context) error
}

// Release implements Held by a function.
type Release func(ctx context.Context) error

// Release calls the function.
func (r Release) Release(ctx context.Context) error { return r(ctx) }

// Locks are clients that acquire and release locks.
type Locks struct {
	Clients int
	// Name returns the lock of a client. It must differ between rounds.
	Name func(client int) string
	// Hold is how long a client keeps the lock.
	Hold time.Duration
	// Pairs sets the metrics of waits to the time of an acquire, the hold and the release
	// together, instead of that of the acquire.
	Pairs bool
	// Acquire waits for the lock. A token of 0 means that the lock has none.
	Acquire func(ctx context.Context, client int, name string) (token uint64, held Held, err error)
}

// Run drives the clients. An Exclusion checks them. A client that still waits for its lock
// after five windows, at least three seconds, stops: it starves.
func (l Locks) Run(ctx context.Context, window time.Duration) (Sample, error) {
	var exclusion Exclusion
	checked := make([]*Checked, l.Clients)
	for i := range checked {
		checked[i] = exclusion.Name(l.Name(i))
	}
	released := context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, window/4+window+max(5*window, 3*time.Second))
	defer cancel()
	s, err := Drive(ctx, l.Clients, window, func(ctx context.Context, client int) (time.Duration, error) {
		return l.pair(ctx, released, client, checked[client])
	})
	s.Violations = append(s.Violations, exclusion.Violations()...)
	return s, err
}

// pair acquires a lock and releases it. The second context is for the release.
func (l Locks) pair(ctx, release context.Context, client int, name *Checked) (wait time.Duration, err error) {
	began := time.Now()
	token, held, err := l.Acquire(ctx, client, name.name)
	wait = time.Since(began)
	if err != nil {
		return wait, err
	}
	name.Enter(token)
	if l.Hold > 0 {
		time.Sleep(l.Hold)
	}
	name.Leave()
	err = held.Release(release)
	if l.Pairs {
		wait = time.Since(began)
	}
	return wait, err
}
