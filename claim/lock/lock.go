// Package lock lets one of many processes act on a name at a time. It does not guarantee mutual
// exclusion by itself. A process can be paused while it holds the lock, and continue after
// another process has acquired it. Every claim therefore has a fencing token. A guard (package
// guard/fence) protects the data by rejecting older tokens.
//
//	locks, err := lock.Open(ctx, "redis://127.0.0.1:6379", nil) // with import _ ".../driver/redis"
//	...
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, db, marks, c, "account/42", withdraw)
//	})
//
// [Fenced.DoAll] acquires several names, in an order that avoids deadlock. Package claim/rwlock
// has locks that readers share, and package claim/semaphore has locks with several holders.
//
// [NewAdvisory] creates locks that only save duplicate work. Their claims have no token, so
// guards do not accept them.
//
// A process takes one place in the backend's queue for a name, however many goroutines want it.
// The goroutines queue in the process, in order, and hand the lock over among themselves. The
// number and the time of these hand-overs are limited, so that other processes get their turn.
// DESIGN.md in this directory has the states.
package lock

import (
	"cmp"
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// Fenced is a lock whose claims carry tokens. It is safe for concurrent use.
type Fenced struct {
	l       *locker
	backend *backend.Backend // nil if the driver is the caller's
}

// Open connects to the lock service at a URL, such as redis://127.0.0.1:6379, and returns its
// locks. The program must import the driver of the URL's scheme:
//
//	import _ "github.com/interlock-dev/interlock/driver/redis"
//
// Every driver accepts the URL settings ttl and prefix: ?ttl=10s&prefix=app/. Without
// Options.Values, Open uses the values of the backend if it has any. Open blocks until the
// backend has answered; ctx bounds only that. If the URL is wrong, the error is a
// *backend.URLError. Other errors are the [*interlock.UnmetError] of [NewFenced] and those of
// the backend.
func Open(ctx context.Context, url string, o *Options) (*Fenced, error) {
	f, b, err := backend.Build(ctx, url, func(b *backend.Backend, d driver.Fenced) (*Fenced, error) {
		options := *cmp.Or(o, &Options{})
		if options.Values == nil {
			var err error
			if options.Values, err = b.ValuesIfAny(ctx, ""); err != nil {
				return nil, err
			}
		}
		return NewFenced(d, &options)
	})
	if err != nil {
		return nil, err
	}
	f.backend = b
	return f, nil
}

// NewFenced returns locks that use d. If d does not meet o.Require, the error is an
// [*interlock.UnmetError]. The caller owns d: close the lock first, then d.
func NewFenced(d driver.Fenced, o *Options) (*Fenced, error) {
	l, err := newLocker(d, o)
	if err != nil {
		return nil, err
	}
	l.batch, _ = d.(driver.Batch)
	return &Fenced{l: l}, nil
}

// Do waits for the lock on name, runs fn while the lock is held, and releases it. It releases
// the lock after fn has returned or panicked, even if ctx has ended.
//
// The context passed to fn ends with ctx or when the claim ends. In the second case its cause
// is interlock.ErrExpired, ErrLost or ErrSessionEnded. If the claim ended before fn returned,
// the error of Do reports that in addition to the error of fn. Then fn ran, and only a guard
// decides how much of it takes effect. If a release is not confirmed, Do reports that to Hooks
// and does not return it: the lock expires by itself.
//
// If the lock was not acquired, fn did not run. The error is interlock.ErrHeld (Options.Wait
// has passed), that of ctx, ErrReentered (ctx already holds name), or that of the backend.
// While the backend is unreachable, Do retries as Options.Attempts says. If Wait or ctx ends
// meanwhile, the error also has the time spent and the error of the last request.
func (f *Fenced) Do(ctx context.Context, name string, fn func(ctx context.Context, c interlock.Claim) error) error {
	return f.l.do(ctx, name, func(ctx context.Context, c claim) error { return fn(ctx, c.fenced()) })
}

// Acquire waits for the lock on name until ctx ends. The claim does not end with ctx; it must
// be released. Errors are those of [Fenced.Do].
func (f *Fenced) Acquire(ctx context.Context, name string) (*Claim, error) {
	c, err := f.l.claim(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return c.fenced(), nil
}

// TryAcquire acquires the lock on name if the lock is free and has no waiters. Otherwise it
// returns an [*interlock.HeldError]. It blocks only until the backend answers.
func (f *Fenced) TryAcquire(ctx context.Context, name string) (*Claim, error) {
	c, err := f.l.claim(ctx, name, true)
	if err != nil {
		return nil, err
	}
	return c.fenced(), nil
}

// Held returns the claim on name that ctx carries, if ctx descends from the context of that
// claim. A callee uses it to share its caller's claim, because acquiring the same name again in
// ctx fails with interlock.ErrReentered. The caller owns the claim and releases it.
func (f *Fenced) Held(ctx context.Context, name string) (*Claim, bool) {
	h := f.l.heldBy(ctx, name)
	if h == nil {
		return nil, false
	}
	return &h.claim, true
}

// Close refuses further calls and makes waiting calls return interlock.ErrClosed. It then waits
// until their requests in the backend are withdrawn, or ctx ends. Held claims stay held until
// they are released. After [Open], Close also disconnects, and claims that are still held
// expire.
func (f *Fenced) Close(ctx context.Context) error {
	err := f.l.close(ctx)
	return errors.Join(err, f.backend.Close(ctx))
}

// Advisory is a lock that saves duplicate work. Its claims have no token and protect nothing.
// It is safe for concurrent use.
type Advisory struct{ l *locker }

// NewAdvisory returns locks that use d; see [NewFenced].
func NewAdvisory(d driver.Advisory, o *Options) (*Advisory, error) {
	l, err := newLocker(untokened{d}, o)
	if err != nil {
		return nil, err
	}
	return &Advisory{l}, nil
}

// Do is [Fenced.Do] without tokens.
func (a *Advisory) Do(ctx context.Context, name string, fn func(ctx context.Context, c *AdvisoryClaim) error) error {
	return a.l.do(ctx, name, func(ctx context.Context, c claim) error { return fn(ctx, &AdvisoryClaim{c}) })
}

// Acquire is [Fenced.Acquire] without tokens.
func (a *Advisory) Acquire(ctx context.Context, name string) (*AdvisoryClaim, error) {
	c, err := a.l.claim(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return &AdvisoryClaim{c}, nil
}

// TryAcquire is [Fenced.TryAcquire] without tokens.
func (a *Advisory) TryAcquire(ctx context.Context, name string) (*AdvisoryClaim, error) {
	c, err := a.l.claim(ctx, name, true)
	if err != nil {
		return nil, err
	}
	return &AdvisoryClaim{c}, nil
}

// Close is [Fenced.Close].
func (a *Advisory) Close(ctx context.Context) error { return a.l.close(ctx) }
