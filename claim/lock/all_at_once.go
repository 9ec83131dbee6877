package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/observe"
)

// A batch is one call for several names that the backend is asked for in one
// step. It has a place and a waiter at the gate of each, the first there, so that
// whoever comes later queues behind it. Its waiters are told all at once.
type batch struct {
	locker  *locker
	members []member
	cancel  context.CancelCauseFunc
	try     bool
	began   boottime.Instant
	left    bool // the caller did not wait for the answer
}

type member struct {
	gate   *gate
	place  *place
	waiter *waiter
}

// errLostOnItsWay: the driver granted and told of a loss before anyone was told of
// the grant.
var errLostOnItsWay = errors.New("one of the claims was lost before it was handed over")

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
	if l.idle != nil || slices.ContainsFunc(names, func(name string) bool { return l.gates[name] != nil }) {
		return nil
	}
	ctx, cancel := context.WithCancelCause(l.ctx)
	b := &batch{locker: l, cancel: cancel, try: try, began: boottime.Now()}
	for _, name := range names {
		m := member{
			gate:   &gate{name: name},
			place:  &place{owner: l.newOwner(), noWait: true, cancel: cancel},
			waiter: &waiter{parent: parent, try: true, result: make(chan outcome, 1)},
		}
		m.gate.place, m.gate.waiters = m.place, []*waiter{m.waiter}
		l.gates[name] = m.gate
		l.begin()
		b.members = append(b.members, m)
	}
	go b.run(ctx)
	return b
}

// run belongs to the gates, not to the caller who waits.
func (b *batch) run(ctx context.Context) {
	defer b.cancel(nil)
	l := b.locker
	grants, err := b.attempt(ctx)
	l.mu.Lock()
	settled := b.settle(grants, err)
	l.mu.Unlock()
	for i, m := range b.members {
		if settled[i] {
			l.finish()
			continue
		}
		go l.giveUpInBackground(m.gate.name, m.place.owner)
	}
}

// attempt asks as locker.attempt does for one name.
func (b *batch) attempt(ctx context.Context) ([]driver.Grant, error) {
	l := b.locker
	requests := make([]driver.Request, len(b.members))
	for i, m := range b.members {
		requests[i] = l.requestOf(m.gate, m.place)
	}
	for {
		grants, err := b.request(ctx, requests)
		if err == nil || !worthRepeating(err) || ctx.Err() != nil {
			return grants, err
		}
		if failed := b.troubled(err); l.tooOften(failed, b.try) || !l.pause(ctx, retries, failed) {
			return nil, err
		}
	}
}

func (b *batch) request(ctx context.Context, requests []driver.Request) ([]driver.Grant, error) {
	l := b.locker
	l.mu.Lock()
	for _, m := range b.members {
		m.place.lost = nil // that was an earlier grant
	}
	l.mu.Unlock()
	grants, err := l.batch.AcquireAll(ctx, requests)
	if err != nil {
		return nil, err
	}
	for i := range grants {
		grants[i].Lease = l.believed(grants[i].Lease)
		if grants[i].Lease.Remaining() <= 0 {
			return nil, &interlock.Error{Op: "acquire all", Driver: l.name, Name: requests[i].Name, Kind: interlock.Uncertain,
				Err: fmt.Errorf("the answer took longer than the lease: %w", interlock.ErrExpired)}
		}
	}
	return grants, nil
}

func (b *batch) troubled(err error) (failed int) {
	for _, m := range b.members {
		failed = b.locker.troubled(m.gate.name, m.place, err)
	}
	return failed
}

// settle tells everyone at the gates what became of the places, with the mutex
// held. What is not settled has to be given up.
func (b *batch) settle(grants []driver.Grant, err error) (settled []bool) {
	l := b.locker
	if err == nil && slices.ContainsFunc(b.members, func(m member) bool { return m.place.lost != nil }) {
		err = &interlock.Error{Op: "acquire all", Driver: l.name, Kind: interlock.Retryable, Err: errLostOnItsWay}
	}
	settled = make([]bool, len(b.members))
	if err != nil {
		b.refuse(err)
		nothing := errors.Is(err, interlock.ErrHeld) || errors.Is(err, driver.ErrNotInOneStep)
		for i, m := range b.members {
			settled[i] = nothing && !m.place.uncertain
		}
		return settled
	}
	present := b.waits()
	for i, m := range b.members {
		if i > 0 && present {
			m.waiter.parent = b.members[i-1].gate.holder.ctx
		}
		settled[i] = l.granted(m.gate, m.place, grants[i])
	}
	return settled
}

// refuse tells why there is no grant. If the names are only to be asked for in
// another way, that is of no concern to those who queue behind.
func (b *batch) refuse(err error) {
	l, present := b.locker, b.waits()
	for _, m := range b.members {
		if present {
			m.gate.waiters = slices.Delete(m.gate.waiters, 0, 1)
			m.waiter.result <- outcome{err: err}
		}
		m.place.abandoned = m.place.abandoned || oneByOne(err)
		l.refused(m.gate, m.place, err)
	}
}

// waits reports that the caller has been told nothing and has not left; it stands
// first at all gates then. The mutex is held.
func (b *batch) waits() bool {
	m := b.members[0]
	return slices.Contains(m.gate.waiters, m.waiter)
}

// await waits until ctx ends, which is wait with a bound.
func (b *batch) await(ctx, wait context.Context) (Claims, error) {
	select {
	case o := <-b.members[0].waiter.result:
		return b.collect(o)
	case <-ctx.Done():
	}
	if err := b.leave(wait); err != nil {
		return nil, err
	}
	return b.collect(<-b.members[0].waiter.result)
}

// collect takes what all waiters were told when the first one was.
func (b *batch) collect(o outcome) (claims Claims, err error) {
	for i, m := range b.members {
		if i > 0 {
			o = <-m.waiter.result
		}
		if o.err != nil {
			return nil, o.err
		}
		claims = append(claims, &Claim{claim{h: o.hold}})
	}
	return claims, nil
}

// leave leaves all gates, and says why nothing came of it. It returns nil if the
// waiters have been told.
func (b *batch) leave(wait context.Context) error {
	l := b.locker
	l.mu.Lock()
	defer l.mu.Unlock()
	if !b.waits() {
		return nil
	}
	for _, m := range b.members {
		m.gate.waiters = slices.Delete(m.gate.waiters, 0, 1)
		m.place.abandoned = true
	}
	b.left = true
	b.cancel(errNobodyWaits)
	return l.waitedTooLong(wait, b.members[0].gate, b.began)
}

// tellAcquired tells the hook what it is told of names that are taken one by one;
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
