package lock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/observe"
)

// A batch is one call for several names that the backend is asked for in one
// step. It has a place and a waiter at the gate of each, the first there, so that
// later callers queue behind it. Its waiters are answered all at once.
type batch struct {
	*attempt
	waiters []*waiter
	began   boottime.Instant
	left    bool // the caller did not wait for the answer
}

// errLostOnItsWay: the driver granted and reported a loss before the grant was
// delivered.
var errLostOnItsWay = errors.New("one of the claims was lost before it was returned")

// atOnce takes all names in one step, or finds out that they are not to be had.
// done is false if nothing was decided and they are to be taken one by one: the
// driver or the names do not allow it, this process is busy with one of them, or
// one of them has to be waited for.
func (l *locker) atOnce(parent, wait context.Context, names []string, try bool) (claims Claims, done bool, err error) {
	if l.batch == nil || len(names) < 2 {
		return nil, false, nil
	}
	ctx, cancel := wait, context.CancelFunc(func() {})
	if l.options.Wait > 0 {
		ctx, cancel = context.WithTimeout(wait, l.options.Wait)
	}
	defer cancel()
	began := boottime.Now()
	b := l.muster(parent, names, try)
	if b == nil {
		return nil, false, nil
	}
	claims, err = b.await(ctx, wait)
	if oneByOne(err) || errors.Is(err, interlock.ErrHeld) && !try && !b.left {
		return nil, false, nil
	}
	l.tellAcquired(names[0], claims, boottime.Now().Sub(began), err)
	return claims, true, err
}

func oneByOne(err error) bool {
	return errors.Is(err, driver.ErrNotInOneStep) || errors.Is(err, errLostOnItsWay)
}

// muster takes a place at the gate of each name, if there is nobody at any.
func (l *locker) muster(parent context.Context, names []string, try bool) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || slices.ContainsFunc(names, func(name string) bool { return l.gates[name] != nil }) {
		return nil
	}
	b := &batch{attempt: &attempt{locker: l, try: try, members: make([]member, len(names))}, began: boottime.Now()}
	for i, name := range names {
		w := &waiter{try: true, caller: caller{parent: parent}}
		b.members[i].gate, b.members[i].place = l.reserve(name, w)
		b.waiters = append(b.waiters, w)
	}
	b.prepare(l.ctx)
	go b.serve()
	return b
}

// await waits until ctx ends, which is wait with a bound.
func (b *batch) await(ctx, wait context.Context) (Claims, error) {
	if !b.awaitAnswer(ctx, b.waiters[0]) {
		if err := b.leave(wait); err != nil {
			return nil, err
		}
	}
	return b.collect()
}

// collect takes the answers of all waiters when the first one has its own.
func (b *batch) collect() (claims Claims, err error) {
	for _, w := range b.waiters {
		b.awaitAnswer(context.Background(), w)
		if w.err != nil {
			return nil, w.err
		}
		claims = append(claims, &w.turn.claim)
	}
	return claims, nil
}

// leave leaves all gates, and returns why it had no effect. It returns nil if the
// waiters have their answers.
func (b *batch) leave(wait context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.runEffects()
	for i, m := range b.members {
		if answered := m.gate.leave(b.waiters[i]); answered {
			return nil
		}
	}
	b.left = true
	return b.waitedTooLong(wait, b.members[0].gate, b.began)
}

// tellAcquired calls the hook as for names that are taken one by one;
// of a failure, for the name that is in the way, or the first.
func (l *locker) tellAcquired(first string, claims Claims, took time.Duration, err error) {
	f := l.options.Hooks.Acquired
	if f == nil {
		return
	}
	for _, c := range claims {
		f(observe.LockAcquired{Name: c.Name(), Owner: c.Owner(), Token: c.Token(), Wait: took})
	}
	if err != nil {
		var held *interlock.HeldError
		if errors.As(err, &held) {
			first = held.Name
		}
		f(observe.LockAcquired{Name: first, Wait: took, Err: err})
	}
}
