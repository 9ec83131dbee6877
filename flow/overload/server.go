package overload

import (
	"context"
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
