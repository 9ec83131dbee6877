package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/join"
)

// Claims are several names that are held at once, sorted by the bytes of their names. Each
// claim has its own token. The context of each ends with those before it.
type Claims []*Claim

// On returns the claim on name, or nil if there is none.
func (c Claims) On(name string) *Claim {
	for _, claim := range c {
		if claim.Name() == name {
			return claim
		}
	}
	return nil
}

// Context returns a context that ends, with its cause, as soon as one of the claims ends. If
// there are no claims, it never ends.
func (c Claims) Context() context.Context {
	if len(c) == 0 {
		return context.Background()
	}
	return c[len(c)-1].Context()
}

// Release releases all claims, the last first, each as [Claim.Release] does. It tries all of
// them and joins their errors.
func (c Claims) Release(ctx context.Context) error {
	var failed []error
	for _, claim := range slices.Backward(c) {
		failed = append(failed, claim.leave(ctx))
	}
	for _, claim := range slices.Backward(c) { // afterwards, so that a hook that blocks delays no release
		claim.h.locker.reports.Flush(claim.h)
	}
	return errors.Join(failed...)
}

// DoAll is [Fenced.Do] for several names: it waits until it holds all of them, runs fn, and
// releases all of them. The context passed to fn ends when one of the claims ends.
//
// If the backend can acquire several names in one step (driver.Batch) and all are free, DoAll
// sends one request. Otherwise it acquires the names one after the other, in byte order and
// each once. Therefore calls of DoAll never deadlock with each other, whatever the order of
// their names. A call inside fn for further names can deadlock: acquire all names in one call.
// While DoAll waits for one name, it holds the ones before it, and Options.MaxHold counts for
// them.
//
// If one name cannot be acquired, DoAll releases the others and returns the error of that name.
// If a claim ends while DoAll waits for another name, the error is Retryable.
func (f *Fenced) DoAll(ctx context.Context, names []string, fn func(ctx context.Context, claims Claims) error) error {
	claims, err := f.l.acquireAll(ctx, ctx, names, false)
	if err != nil {
		return err
	}
	return claims.do(ctx, fn)
}

// AcquireAll acquires all of names as [Fenced.DoAll] does. The claims do not end with ctx; they
// must be released.
func (f *Fenced) AcquireAll(ctx context.Context, names []string) (Claims, error) {
	return f.l.acquireAll(context.WithoutCancel(ctx), ctx, names, false)
}

// TryAcquireAll acquires all of names if all are free and have no waiters. Otherwise it returns
// the [*interlock.HeldError] of one that is not.
func (f *Fenced) TryAcquireAll(ctx context.Context, names []string) (Claims, error) {
	return f.l.acquireAll(context.WithoutCancel(ctx), ctx, names, true)
}

// do runs fn and releases.
func (c Claims) do(ctx context.Context, fn func(context.Context, Claims) error) (err error) {
	defer func() {
		_ = c.Release(ctx) // Hooks.ReleaseFailed reports errors
		for _, claim := range c {
			err = claim.h.orEndedEarly(err)
		}
	}()
	return fn(c.Context(), c)
}

// acquireAll waits until wait ends. The context of the first claim descends from parent, and that of
// each other claim from the one before. So the last context has all claims, and ends with any.
func (l *locker) acquireAll(parent, wait context.Context, names []string, try bool) (claims Claims, err error) {
	names, err = l.inOrder(wait, names)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			l.handle(l.finish)
			return
		}
		l.giveBack(wait, claims)
		claims = nil
	}()
	began := boottime.Now()
	if claims, done, err := l.atOnce(parent, wait, names, try); done {
		return claims, err
	}
	for _, name := range names {
		bound := l.options.Wait
		if bound > 0 {
			bound = max(1, bound-boottime.Now().Sub(began))
		}
		waiting, stop := join.Context(wait, claims.Context())
		h, err := l.acquire(bound, caller{parent: parent}, waiting, name, try)
		stop()
		if err != nil {
			return claims, l.outOfAll(claims, name, err)
		}
		claims, parent = append(claims, &h.claim), h.context()
	}
	return claims, nil
}

// giveBack releases claims and waits for the answers until ctx ends.
func (l *locker) giveBack(ctx context.Context, claims Claims) {
	_ = join.Wait(ctx, func() {
		_ = claims.Release(ctx) // Hooks.ReleaseFailed reports errors
		l.handle(l.finish)
	})
}

// inOrder sorts names and rejects those that the call must not wait for. If it returns names, Close
// waits for the call.
func (l *locker) inOrder(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, l.misuse("acquire all", "", "no name is given")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if err := l.refuse(ctx, name); err != nil {
			return nil, l.fail(name, err)
		}
	}
	l.running++
	return names, nil
}

// outOfAll returns the error of name. If the call failed because a claim that it held has ended, it
// returns an error that says so.
func (l *locker) outOfAll(held Claims, name string, err error) error {
	for _, c := range held {
		if cause := c.h.cause(); cause != nil {
			return l.driverName.New("acquire all", c.Name(), interlock.Retryable, fmt.Errorf("the claim ended during the wait for %q: %w", name, cause))
		}
	}
	return err
}
