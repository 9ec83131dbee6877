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

// Claims are several names held at once, each with a token of its own, sorted by
// the bytes of their names. The context of each ends with those before it.
type Claims []*Claim

// On is the claim on name, or nil if it is not among them.
func (c Claims) On(name string) *Claim {
	for _, claim := range c {
		if claim.Name() == name {
			return claim
		}
	}
	return nil
}

// Context ends, with its cause, as soon as any of the claims does. No claims
// have a context that never ends.
func (c Claims) Context() context.Context {
	if len(c) == 0 {
		return context.Background()
	}
	return c[len(c)-1].Context()
}

// Release gives all of them up, the last first, each as [Claim.Release] does. It
// tries all of them, and its error joins those that failed.
func (c Claims) Release(ctx context.Context) error {
	var failed []error
	for _, claim := range slices.Backward(c) {
		failed = append(failed, claim.Release(ctx))
	}
	return errors.Join(failed...)
}

// DoAll is [Fenced.Do] for several names: it waits until it holds all of them,
// runs fn, and releases all of them. The context that fn gets ends when any of
// the claims does.
//
// If the backend can take several names in one step (driver.Batch) and all of them
// are free, that is one request. Otherwise, and whenever one of them has to be
// waited for, they are taken one after the other in the order of their bytes, each
// once, so that callers of DoAll never wait for each other in a circle, whatever
// order they write names in. A call inside fn for further names can: take all that
// is needed in one call. While it waits for one name, the ones before it are held,
// and Options.MaxHold counts for them.
//
// If one is not to be had, what was taken is given back and the error is that of
// the name which failed; if a claim ended while others were awaited, the error
// is Retryable.
func (f *Fenced) DoAll(ctx context.Context, names []string, fn func(ctx context.Context, claims Claims) error) error {
	claims, err := f.l.acquireAll(ctx, ctx, names, false)
	if err != nil {
		return err
	}
	return claims.do(ctx, fn)
}

// AcquireAll takes all of names, in the way of [Fenced.DoAll]. The claims do not
// end with ctx; they must be released.
func (f *Fenced) AcquireAll(ctx context.Context, names []string) (Claims, error) {
	return f.l.acquireAll(context.WithoutCancel(ctx), ctx, names, false)
}

// TryAcquireAll takes all of names if nobody holds or awaits any of them, and
// returns the [*interlock.HeldError] of one that somebody does.
func (f *Fenced) TryAcquireAll(ctx context.Context, names []string) (Claims, error) {
	return f.l.acquireAll(context.WithoutCancel(ctx), ctx, names, true)
}

// do runs fn and releases.
func (c Claims) do(ctx context.Context, fn func(context.Context, Claims) error) (err error) {
	defer func() {
		_ = c.Release(ctx) // Hooks.ReleaseFailed tells
		for _, claim := range c {
			err = claim.h.orEndedEarly(err)
		}
	}()
	return fn(c.Context(), c)
}

// acquireAll waits until wait ends; the claims' contexts descend from parent,
// each from that of the one before, so that the last one ends with any of them
// and carries them all.
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
		h, err := l.acquireWithin(bound, caller{parent: parent}, waiting, name, try)
		stop()
		if err != nil {
			return claims, l.outOfAll(claims, name, err)
		}
		claims, parent = append(claims, &h.claim), h.context()
	}
	return claims, nil
}

// giveBack releases claims, and waits for that until ctx ends.
func (l *locker) giveBack(ctx context.Context, claims Claims) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = claims.Release(ctx) // Hooks.ReleaseFailed tells
		l.handle(l.finish)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// inOrder sorts names and refuses what must not be waited for. If there is
// something to wait for, Close waits for it, too.
func (l *locker) inOrder(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, &interlock.Error{Op: "acquire all", Driver: l.name, Kind: interlock.Bug,
			Err: errors.New("no name is given")}
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

// outOfAll is the error for name, unless it failed because one that was held
// already has ended.
func (l *locker) outOfAll(held Claims, name string, err error) error {
	for _, c := range held {
		if cause := c.h.cause(); cause != nil {
			return &interlock.Error{Op: "acquire all", Driver: l.name, Name: c.Name(), Kind: interlock.Retryable,
				Err: fmt.Errorf("the claim ended during the wait for %q: %w", name, cause)}
		}
	}
	return err
}
