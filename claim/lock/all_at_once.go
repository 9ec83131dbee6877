package lock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// A batch is a call that requests several names in one step. It has the first place and waiter at
// the gate of each name, so later callers queue after it. Its waiters get their answers together.
type batch struct {
	*attempt
	waiters []*waiter
	began   boottime.Instant
	left    bool // the caller did not wait for the answer
}

// errLostOnItsWay means that the driver reported the loss of a claim before its grant was
// delivered.
var errLostOnItsWay = errors.New("one of the claims was lost before it was returned")

// atOnce acquires all names in one step. done is false if they must be acquired one by one: the
// driver or the names do not allow one step, this process uses one of them, or the call must
// wait for one.
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
	b := l.reserveAll(parent, names, try)
	if b == nil {
		return nil, false, nil
	}
	claims, err = b.await(ctx, wait)
	if oneByOne(err) || errors.Is(err, interlock.ErrHeld) && !try && !b.left {
		return nil, false, nil
	}
	l.reportAcquired(names[0], claims, boottime.Now().Sub(began), err)
	return claims, true, err
}

func oneByOne(err error) bool {
	return errors.Is(err, driver.ErrNotInOneStep) || errors.Is(err, errLostOnItsWay)
}

// reserveAll takes a place at the gate of each name, or returns nil if one of the gates is in use.
func (l *locker) reserveAll(parent context.Context, names []string, try bool) *batch {
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
	return b.takeAnswers()
}

// takeAnswers returns the answers of all waiters once the first has its own.
func (b *batch) takeAnswers() (claims Claims, err error) {
	for _, w := range b.waiters {
		b.awaitAnswer(context.Background(), w)
		if w.err != nil {
			return nil, w.err
		}
		claims = append(claims, &w.turn.claim)
	}
	return claims, nil
}

// leave leaves all gates and returns the error of the call. It returns nil if the waiters have their
// answers.
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

// reportAcquired calls the hook as if the names were acquired one by one. After a failure it reports
// the name that is held elsewhere, or the first.
func (l *locker) reportAcquired(first string, claims Claims, took time.Duration, err error) {
	f := l.options.Hooks.Acquired
	for _, c := range claims {
		report.Call(&l.reports, f, observe.LockAcquired{Name: c.Name(), Owner: c.Owner(), Token: c.Token(), Wait: took})
	}
	if err != nil {
		if held, found := errors.AsType[*interlock.HeldError](err); found {
			first = held.Name
		}
		report.Call(&l.reports, f, observe.LockAcquired{Name: first, Wait: took, Err: err})
	}
}
