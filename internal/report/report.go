// Package report calls hooks outside of the caller's locks, one at a time and in order. It cannot
// make a hook return: while one blocks, those behind it wait, and nothing else does.
package report

import (
	"context"
	"sync"
)

// Most is how many reports wait at most. Further ones are dropped.
const Most = 1 << 16

// Queue holds the reports of one object. The zero value is empty. It is safe for concurrent use,
// with any lock of the caller held, except for Flush, Call and Wait. Its goroutine ends when no
// report waits; the owner of the queue calls Wait at its end.
type Queue struct {
	mu      sync.Mutex
	waiting []entry
	first   [1]entry      // storage of a queue of one
	calling bool          // a goroutine calls hooks
	idle    chan struct{} // closed when no report is left; nil if that is not awaited
}

type entry struct {
	by   any
	call func()
}

// Add adds the report of e, unless hook is nil. If by is nil, a goroutine calls hook. Otherwise
// the caller calls Flush with by once it holds no lock.
func Add[E any](q *Queue, by any, hook func(E), e E) {
	if hook != nil {
		q.add(entry{by, func() { hook(e) }})
	}
}

// Now calls hook with e, unless hook is nil, beside the queues.
func Now[E any](hook func(E), e E) {
	if hook != nil {
		hook(e)
	}
}

// Call calls hook with e before it returns, unless hook is nil. If other reports are before that of e,
// a goroutine calls hook after theirs.
func Call[E any](q *Queue, hook func(E), e E) {
	switch {
	case hook == nil:
	case q.start(false):
		defer q.stop()
		hook(e)
	default:
		Add(q, nil, hook, e)
	}
}

// start makes the caller the one that calls hooks, if no hook runs, and if reports wait or none does.
func (q *Queue) start(waiting bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.calling || len(q.waiting) > 0 != waiting {
		return false
	}
	q.calling = true
	return true
}

func (q *Queue) add(e entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == Most {
		return
	}
	if len(q.waiting) == 0 {
		q.waiting = q.first[:0]
	}
	q.waiting = append(q.waiting, e)
	if e.by == nil && !q.calling {
		q.calling = true
		go q.run(nil)
	}
}

// Flush calls the hooks of the reports that by added, if they are first and no hook runs.
// Otherwise a goroutine calls them.
func (q *Queue) Flush(by any) {
	if q.start(true) {
		q.run(by)
	}
}

// Wait waits until no report is left. If ctx ends first, it returns the cause of ctx.
func (q *Queue) Wait(ctx context.Context) error {
	q.mu.Lock()
	if !q.calling && len(q.waiting) == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	q.Flush(q) // added, and not flushed yet
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run calls the hooks of all reports; if by is not nil, only up to the first report of another.
func (q *Queue) run(by any) {
	defer q.stop() // also if a hook panics or ends the goroutine
	for call := q.next(by); call != nil; call = q.next(by) {
		call()
	}
}

func (q *Queue) next(by any) (call func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || by != nil && q.waiting[0].by != by {
		return nil
	}
	call, q.waiting[0] = q.waiting[0].call, entry{}
	q.waiting = q.waiting[1:]
	return call
}

// stop leaves the rest to a goroutine.
func (q *Queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		go q.run(nil)
		return
	}
	q.calling = false
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}
