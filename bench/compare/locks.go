package compare

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Acquire waits for a lock, for the clients of one process. A token of 0 means that the lock has
// none.
type Acquire func(ctx context.Context, name string) (token uint64, held Held, err error)

// Held is a lock that a client holds. It is no function, because the method value of ours would
// be an allocation more.
type Held interface {
	// Release releases the lock.
	Release(ctx context.Context) error
}

// Release implements Held by a function.
type Release func(ctx context.Context) error

// Release calls the function.
func (r Release) Release(ctx context.Context) error { return r(ctx) }

// Locks are clients that acquire and release locks: each has one of its own.
type Locks struct {
	Clients   int
	Processes int           // that share the clients equally; 0 means one
	Hot       bool          // all clients compete for one lock
	Hold      time.Duration // how long a client keeps the lock
	// Pairs sets the metrics of waits to the time of an acquire, the hold and the release
	// together, instead of that of the acquire.
	Pairs bool
	// Commands returns how many commands the store has executed; nil if that is unknown.
	Commands func() float64
}

// numbers makes the names of locks different in all rounds.
var numbers atomic.Int64

// Side returns the clients, on processes of which open creates one at each call. A checker
// notices two clients that hold one lock, and a token that does not rise. A client that still
// waits for its lock after five windows, at least three seconds, stops: it starves.
func (l Locks) Side(name string, open func() Acquire) Side {
	processes := make([]Acquire, max(1, l.Processes))
	for i := range processes {
		processes[i] = open()
	}
	return Side{Name: name, Run: func(ctx context.Context, window time.Duration) (Sample, error) {
		var found violations
		locks := make([]*checked, l.Clients)
		for i := range locks {
			locks[i] = &checked{name: fmt.Sprintf("%s-%d", name, numbers.Add(1)), found: &found}
			if l.Hot {
				locks[i] = locks[0]
			}
		}
		before := 0.0
		if l.Commands != nil {
			before = l.Commands()
		}
		released := context.WithoutCancel(ctx)
		ctx, cancel := context.WithTimeout(ctx, window/4+window+max(5*window, 3*time.Second))
		defer cancel()
		s, err := drive(ctx, l.Clients, window, func(ctx context.Context, client int) (time.Duration, error) {
			return l.pair(ctx, released, processes[client%len(processes)], locks[client])
		})
		if l.Commands != nil {
			s.Values["commands"] = (l.Commands() - before) / float64(max(1, s.Total))
		}
		s.Violations = found.all()
		return s, err
	}}
}

// pair acquires a lock and releases it. The second context is for the release.
func (l Locks) pair(ctx, released context.Context, acquire Acquire, lock *checked) (wait time.Duration, err error) {
	began := time.Now()
	token, held, err := acquire(ctx, lock.name)
	wait = time.Since(began)
	if err != nil {
		return wait, err
	}
	lock.enter(token)
	if l.Hold > 0 {
		time.Sleep(l.Hold)
	}
	lock.inside.Add(-1)
	err = held.Release(released)
	if l.Pairs {
		wait = time.Since(began)
	}
	return wait, err
}

// checked is a lock whose holders call enter, and decrement inside before they release it.
type checked struct {
	name   string
	inside atomic.Int32
	token  atomic.Uint64 // of the last holder
	found  *violations
}

func (c *checked) enter(token uint64) {
	if n := c.inside.Add(1); n != 1 {
		c.found.add("%d clients held %q at once", n, c.name)
	}
	if last := c.token.Load(); token != 0 && token <= last {
		c.found.add("token %d of %q was granted after %d", token, c.name, last)
	}
	if token != 0 {
		c.token.Store(token)
	}
}

// violations has the first violation, and the number of all.
type violations struct {
	mu    sync.Mutex
	n     int
	first string
}

func (v *violations) add(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.n++; v.n == 1 {
		v.first = fmt.Sprintf(format, args...)
	}
}

func (v *violations) all() []string {
	if v.n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s, one of %d violations", v.first, v.n)}
}
