package overload

import (
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
)

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
