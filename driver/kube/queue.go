package kube

import (
	"context"
	"math"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// queue is a waiting call of Acquire. Kubernetes does not know it. It wakes by the
// watch, at the end of the holder's lease, and after a long time without an event. A live holder
// renews, so it causes no such time.
type queue struct {
	d        *Driver
	c        *contender
	noWait   bool
	fresh    bool             // the Lease was read during the call
	woken    chan struct{}    // nil until its first look
	reported bool             // Events.Waiting was called
	holder   string           // the last reported holder
	silent   boottime.Instant // when it last read the Lease
}

// rounds returns how often a call may try.
func (q *queue) rounds() int {
	if q.noWait {
		return attempts
	}
	return math.MaxInt
}

// read reads the Lease, for a call that does not wait.
func (q *queue) read(ctx context.Context) error {
	q.fresh = true
	_, _, err := q.d.read(ctx, "acquire", q.c.name, q.c.object)
	return err
}

// look returns the known state of the Lease. Later changes wake the queue.
func (q *queue) look() sight {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.woken == nil {
		q.woken = make(chan struct{}, 1)
		if d.view.waiting[q.c.object] == nil {
			d.view.waiting[q.c.object] = map[chan struct{}]bool{}
		}
		d.view.waiting[q.c.object][q.woken] = true
	}
	return d.view.now(q.c.object)
}

func (q *queue) leave() {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.view.waiting[q.c.object], q.woken)
	if len(d.view.waiting[q.c.object]) == 0 {
		delete(d.view.waiting, q.c.object)
	}
}

// wait returns when another try is useful.
func (q *queue) wait(ctx context.Context, v verdict) error {
	q.reportWaiting(v.holder)
	return q.sleep(ctx, v.until)
}

// awaitView waits until the view shows the change that a write over tried met; a call
// that does not wait reads it.
func (q *queue) awaitView(ctx context.Context, tried sight) error {
	if q.noWait {
		return q.read(ctx)
	}
	q.reportWaiting("")
	for {
		if s := q.look(); s.rev != tried.rev || s.exists() != tried.exists() {
			return nil
		}
		if err := q.sleep(ctx, boottime.Now().Add(q.d.pace.quiet)); err != nil {
			return err
		}
	}
}

// reportWaiting reports that it waits, and for which holder once that is known.
func (q *queue) reportWaiting(holder string) {
	if q.reported && (holder == "" || holder == q.holder) {
		return
	}
	q.reported, q.holder = true, holder
	q.d.mu.Lock()
	defer q.d.mu.Unlock() // so that the report does not follow a Release
	if waiting := q.c.events.Waiting; waiting != nil {
		waiting(driver.Place{Ahead: -1, Holder: holder})
	}
}

// sleep returns when the Lease changed, at until, or after reading a Lease that had
// no event for long.
func (q *queue) sleep(ctx context.Context, until boottime.Instant) error {
	now := boottime.Now()
	heard := max(q.d.look(q.c.object).heard, q.silent)
	if heard == 0 {
		heard, q.silent = now, now
	}
	quiet := heard.Add(q.d.pace.quiet)
	timer := time.NewTimer(min(until, quiet).Sub(now))
	defer timer.Stop()
	select {
	case <-q.woken:
		return q.d.wanted(q.c)
	case <-ctx.Done():
		return problem("acquire", q.c.name, interlock.Uncertain, context.Cause(ctx))
	case <-q.d.ctx.Done():
		return errClosed("acquire", q.c.name)
	case <-timer.C:
	}
	if boottime.Now() < quiet {
		return nil
	}
	return q.ask(ctx)
}

// ask reads the Lease, and reopens the watch if that missed a change. A server that
// does not answer now may do so later.
func (q *queue) ask(ctx context.Context) error {
	q.silent = boottime.Now()
	_, news, err := q.d.read(ctx, "acquire", q.c.name, q.c.object)
	if news {
		q.d.mu.Lock()
		q.d.view.reopen()
		q.d.mu.Unlock()
	}
	if interlock.Kind(err) == interlock.Retryable && ctx.Err() == nil {
		return nil
	}
	return err
}
