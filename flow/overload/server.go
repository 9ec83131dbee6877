package overload

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/interlock-dev/interlock"
)

const retryAfter = time.Second // of rejected calls

// Admit waits until a call may run, for at most Options.MaxWait. If err is nil, call done when the call
// has ended; further calls of done do nothing. Otherwise err has a [RejectedError], or the cause of the
// end of ctx. The class is that of ctx.
func (p *Policy) Admit(ctx context.Context) (done func(), err error) {
	const op = "admit"
	if ctx.Err() != nil {
		return nil, &interlock.Error{Op: op, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	w := &waiter{class: ClassOf(ctx).index(), granted: make(chan adaptivelimiter.Permit, 1)}
	w.deadline, _ = ctx.Deadline()
	wait, permit, reason := p.enter(time.Now(), w)
	if permit == nil && reason == "" {
		permit = p.await(ctx, w, wait)
		reason = "no capacity within the wait"
	}
	switch {
	case permit != nil && ctx.Err() == nil:
		return p.ended(permit), nil
	case permit != nil:
		p.leave(permit, 0, false)
		fallthrough
	case ctx.Err() != nil:
		return nil, &interlock.Error{Op: op, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	return nil, &interlock.Error{Op: op, Kind: interlock.Retryable, Err: &RejectedError{Reason: reason, RetryAfter: retryAfter}}
}

// enter returns a permit, how long to wait in the queue, or the reason of a rejection. If no call runs,
// a call is never late: it measures the latency again.
func (p *Policy) enter(now time.Time, w *waiter) (wait time.Duration, permit adaptivelimiter.Permit, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running > 0 && w.late(now, p.takes) {
		return 0, nil, "its deadline is nearer than a call takes"
	}
	if p.queue.size == 0 {
		if permit = p.permit(); permit != nil {
			return 0, permit, ""
		}
	}
	wait, out, ok := p.queue.push(now, w)
	if out != nil {
		out.granted <- nil
	}
	if !ok {
		return 0, nil, "too many calls wait"
	}
	return wait, nil, ""
}

// permit returns a permit if a call may begin, or nil. The mutex is held.
func (p *Policy) permit() adaptivelimiter.Permit {
	if p.running >= p.rail.limit {
		return nil
	}
	permit, ok := p.limiter.TryAcquirePermit()
	if !ok {
		return nil
	}
	p.running++
	return permit
}

// await waits for a permit; nil means none.
func (p *Policy) await(ctx context.Context, w *waiter, wait time.Duration) adaptivelimiter.Permit {
	select {
	case permit := <-w.granted:
		return permit
	case <-time.After(wait):
	case <-ctx.Done():
	}
	p.mu.Lock()
	left := p.queue.remove(w)
	p.mu.Unlock()
	if left {
		return nil
	}
	return <-w.granted // another goroutine removed it at the same time
}

// ended returns the done function of a call that begins now.
func (p *Policy) ended(permit adaptivelimiter.Permit) func() {
	begun := time.Now()
	return sync.OnceFunc(func() { p.leave(permit, time.Since(begun), true) })
}

// leave ends a call, which ran or did not begin, and starts waiting calls.
func (p *Policy) leave(permit adaptivelimiter.Permit, took time.Duration, ran bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if ran {
		permit.Record()
		p.rail.record(now, took, p.running)
		p.takes += (took - p.takes) / 8
	} else {
		permit.Drop()
	}
	p.running--
	for p.queue.size > 0 {
		next := p.permit()
		if next == nil {
			return
		}
		w := p.queue.pop(now)
		for w != nil && p.running > 1 && w.late(now, p.takes) {
			w.granted <- nil
			w = p.queue.pop(now)
		}
		if w == nil {
			next.Drop()
			p.running--
			return
		}
		w.granted <- next
	}
}

// Stats are the numbers of a server at one moment.
type Stats struct {
	Limit   int // concurrent calls
	Running int
	Waiting int
}

// Stats returns the present numbers.
func (p *Policy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Limit: min(p.limiter.Limit(), p.rail.limit), Running: p.running, Waiting: p.queue.size}
}

// A queue has the waiting calls. It is pure: the time comes from outside.
type queue struct {
	most            int // bound
	maxWait, target time.Duration

	waiting [classes][]*waiter // of each class, the oldest first
	size    int
	since   time.Time // end of the last time it was empty; valid if size is above 0
}

// A waiter is a call that waits.
type waiter struct {
	class    int
	deadline time.Time // zero if there is none
	// granted receives one value when another goroutine removes the waiter: its permit, or nil if it
	// is rejected.
	granted chan adaptivelimiter.Permit
}

// late reports whether a call that begins now would end after its deadline.
func (w *waiter) late(now time.Time, takes time.Duration) bool {
	return !w.deadline.IsZero() && now.Add(takes).After(w.deadline)
}

// standing reports whether the queue was not empty for maxWait.
func (q *queue) standing(now time.Time) bool { return q.size > 0 && now.Sub(q.since) >= q.maxWait }

// push adds a waiter and returns how long it may wait. If the queue is full, it removes and returns
// the oldest waiter of the least critical class below that of w. If there is none, ok is false.
func (q *queue) push(now time.Time, w *waiter) (wait time.Duration, out *waiter, ok bool) {
	if q.most <= 0 {
		return 0, nil, false
	}
	if q.size >= q.most {
		for class := range w.class {
			if all := q.waiting[class]; len(all) > 0 {
				out = all[0]
				q.remove(out)
				break
			}
		}
		if out == nil {
			return 0, nil, false
		}
	}
	if q.size == 0 {
		q.since = now
	}
	wait = q.maxWait
	if q.standing(now) {
		wait = q.target
	}
	q.waiting[w.class] = append(q.waiting[w.class], w)
	q.size++
	return wait, out, true
}

// pop removes the next waiter: of the most critical class, the oldest, or the newest if the queue is
// standing. It returns nil if the queue is empty.
func (q *queue) pop(now time.Time) *waiter {
	for class := classes - 1; class >= 0; class-- {
		if all := q.waiting[class]; len(all) > 0 {
			next := all[0]
			if q.standing(now) {
				next = all[len(all)-1]
			}
			q.remove(next)
			return next
		}
	}
	return nil
}

// remove reports whether the waiter was in the queue.
func (q *queue) remove(w *waiter) bool {
	i := slices.Index(q.waiting[w.class], w)
	if i < 0 {
		return false
	}
	q.waiting[w.class] = slices.Delete(q.waiting[w.class], i, i+1)
	q.size--
	return true
}

// A rail lowers a limit while too many calls exceed an absolute latency. It is pure: the time comes from
// outside.
type rail struct {
	latency            time.Duration // negative means none
	least, most, limit int

	begun                time.Time // start of the present window
	calls, slow, busiest int       // in the window
}

const (
	railWindow = time.Second // least time between changes
	railCalls  = 10          // least calls between changes
)

// record counts a call, with its latency and the number of running calls.
func (r *rail) record(now time.Time, took time.Duration, running int) {
	if r.latency < 0 {
		return
	}
	if r.calls == 0 {
		r.begun = now
	}
	r.calls++
	r.busiest = max(r.busiest, running)
	if took > r.latency {
		r.slow++
	}
	if r.calls < railCalls || now.Sub(r.begun) < railWindow {
		return
	}
	if r.slow*10 > r.calls {
		r.limit = max(r.least, min(r.limit, r.busiest)*4/5)
	} else {
		r.limit = min(r.most, r.limit+max(1, r.limit/10))
	}
	r.calls, r.slow, r.busiest = 0, 0, 0
}
