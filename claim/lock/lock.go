// Package lock lets one of many processes act on a name at a time. It does not
// promise that only one acts: a process can be stopped while
// it holds the lock and go on after it was taken away. What a lock of this
// package has is a token, and a guard (package guard/fence) that refuses older
// tokens is what protects the data.
//
//	locks, err := lock.NewFenced(d, nil) // d from driver/redis, driver/etcd, …
//	...
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, db, marks, c, "account/42", withdraw)
//	})
//
// Several names at once are taken by [Fenced.DoAll], in an order in which callers
// never wait for each other in a circle. Locks that readers share are in package
// claim/rwlock, at most so many at once in claim/semaphore.
//
// A lock that only saves duplicate work is made by [NewAdvisory]. Its claims
// have no token, so that they cannot be handed to a guard.
//
// However many goroutines want a name, the process takes one place in the
// backend's queue for it: goroutines queue here, in order, and pass the lock on
// among themselves a bounded number of times, and for a bounded time, before other
// processes have their turn. DESIGN.md beside this file has the states.
package lock

import (
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

// Open connects to the lock service that a URL names, as redis://127.0.0.1:6379, and returns
// its locks. The driver of the URL's scheme has to be part of the program:
//
//	import _ "github.com/interlock-dev/interlock/driver/redis"
//
// The settings ttl and prefix of a URL are those of every driver: ?ttl=10s&prefix=app/.
// Without Options.Values, those of the backend are used if it keeps values. Open blocks until
// the backend has answered; ctx bounds that only. Errors are a *backend.URLError if the URL is
// wrong, an [*interlock.UnmetError] as of [NewFenced], or those of the backend.
func Open(ctx context.Context, url string, o *Options) (*Fenced, error) {
	f, b, err := backend.Build(ctx, url, func(b *backend.Backend, d driver.Fenced) (*Fenced, error) {
		var options Options
		if o != nil {
			options = *o
		}
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

// NewFenced makes locks of d. It fails with an [*interlock.UnmetError] if d does
// not promise what o.Require asks for. The lock does not own d: close the lock
// first, then d.
func NewFenced(d driver.Fenced, o *Options) (*Fenced, error) {
	l, err := newLocker(fencedBackend{d}, d.Guarantees(), o)
	if err != nil {
		return nil, err
	}
	l.batch, _ = d.(driver.Batch)
	return &Fenced{l: l}, nil
}

// Do waits for the lock on name, runs fn while it is held, and releases it when
// fn has returned or panicked, even if ctx has ended.
//
// The context that fn gets ends with ctx, or when the claim ends: its cause is
// then interlock.ErrExpired, ErrLost or ErrSessionEnded. If the claim ended
// before fn returned, Do's error says so, beside fn's own: fn ran, and only a
// guard knows how much of it counts. A release that could not be confirmed is
// reported to Hooks, not returned: the lock expires by itself.
//
// If the lock was not acquired fn was not run, and the error is
// interlock.ErrHeld (Options.Wait has passed), that of ctx, ErrReentered (ctx
// holds name already), or that of the backend. While the backend cannot be
// reached Do retries, as Options.Attempts says; if Wait or ctx ends then, the
// error also says for how long it tried and why the last request failed.
func (f *Fenced) Do(ctx context.Context, name string, fn func(ctx context.Context, c interlock.Claim) error) error {
	return f.l.do(ctx, name, func(ctx context.Context, c claim) error { return fn(ctx, c.fenced()) })
}

// Acquire waits for the lock on name until ctx ends. The claim does not end
// with ctx; it must be released. Errors are those of [Fenced.Do].
func (f *Fenced) Acquire(ctx context.Context, name string) (*Claim, error) {
	c, err := f.l.claim(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return c.fenced(), nil
}

// TryAcquire takes the lock on name if nobody holds or awaits it, and returns
// an [*interlock.HeldError] otherwise. It blocks only for the backend's answer.
func (f *Fenced) TryAcquire(ctx context.Context, name string) (*Claim, error) {
	c, err := f.l.claim(ctx, name, true)
	if err != nil {
		return nil, err
	}
	return c.fenced(), nil
}

// Held finds the claim on name that ctx carries, because ctx descends from that
// of the claim. This is how a callee shares its caller's claim: asking for the
// same name again in such a context is refused with interlock.ErrReentered. The
// claim found is the caller's, who releases it.
func (f *Fenced) Held(ctx context.Context, name string) (*Claim, bool) {
	h := f.l.heldBy(ctx, name)
	if h == nil {
		return nil, false
	}
	return &h.claim, true
}

// Close refuses further calls, makes those that wait return interlock.ErrClosed,
// and waits until what they had in the backend is given up, or ctx ends. Claims
// that are held stay held until they are released. After [Open] it also disconnects: claims
// that are still held are left to expire.
func (f *Fenced) Close(ctx context.Context) error {
	err := f.l.close(ctx)
	return errors.Join(err, f.backend.Close(ctx))
}

// Advisory is a lock that saves duplicate work. Its claims have no token and
// protect nothing. It is safe for concurrent use.
type Advisory struct{ l *locker }

// NewAdvisory makes locks of d; see [NewFenced].
func NewAdvisory(d driver.Advisory, o *Options) (*Advisory, error) {
	l, err := newLocker(advisoryBackend{d}, d.Guarantees(), o)
	if err != nil {
		return nil, err
	}
	return &Advisory{l}, nil
}

// Do has the behaviour of [Fenced.Do].
func (a *Advisory) Do(ctx context.Context, name string, fn func(ctx context.Context, c *AdvisoryClaim) error) error {
	return a.l.do(ctx, name, func(ctx context.Context, c claim) error { return fn(ctx, &AdvisoryClaim{c}) })
}

// Acquire has the behaviour of [Fenced.Acquire].
func (a *Advisory) Acquire(ctx context.Context, name string) (*AdvisoryClaim, error) {
	c, err := a.l.claim(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return &AdvisoryClaim{c}, nil
}

// TryAcquire has the behaviour of [Fenced.TryAcquire].
func (a *Advisory) TryAcquire(ctx context.Context, name string) (*AdvisoryClaim, error) {
	c, err := a.l.claim(ctx, name, true)
	if err != nil {
		return nil, err
	}
	return &AdvisoryClaim{c}, nil
}

// Held has the behaviour of [Fenced.Held].
func (a *Advisory) Held(ctx context.Context, name string) (*AdvisoryClaim, bool) {
	h := a.l.heldBy(ctx, name)
	if h == nil {
		return nil, false
	}
	return &AdvisoryClaim{claim{h: h}}, true
}

// Close has the behaviour of [Fenced.Close].
func (a *Advisory) Close(ctx context.Context) error { return a.l.close(ctx) }
