package lock

import (
	"container/heap"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// alarms wake any number of holds by one timer. The removal of a hold leaves the timer as it is. It
// then fires without a hold that is due, and is set for the next one.
type alarms struct {
	ring  func()
	timer *time.Timer      // nil until it is first needed
	armed boottime.Instant // when the timer fires; 0 if it does not
	next  queue            // a heap
}

// set wakes h after a time, in place of the time that was set before.
func (a *alarms) set(h *hold, after time.Duration) {
	a.remove(h)
	h.due = boottime.Sent().Add(after)
	heap.Push(&a.next, h)
	a.arm()
}

func (a *alarms) remove(h *hold) {
	if h.due != 0 {
		heap.Remove(&a.next, h.index)
	}
}

// fired calls wake for each hold that is due, and sets the timer for the next one.
func (a *alarms) fired(now boottime.Instant, wake func(*hold)) {
	for len(a.next) > 0 && a.next[0].due <= now {
		wake(heap.Pop(&a.next).(*hold))
	}
	a.armed = 0 // not earlier, so that set did not touch the timer
	a.arm()
}

// arm sets the timer, unless it fires early enough.
func (a *alarms) arm() {
	if len(a.next) == 0 || a.armed != 0 && a.armed <= a.next[0].due {
		return
	}
	a.armed = a.next[0].due
	after := a.armed.Sub(boottime.Sent())
	if a.timer == nil {
		a.timer = time.AfterFunc(after, a.ring)
		return
	}
	a.timer.Reset(after)
}

// queue is a heap of holds by due.
type queue []*hold

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(h any) {
	h.(*hold).index = len(*q)
	*q = append(*q, h.(*hold))
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	h.due = 0
	*q = slices.Delete(*q, last, last+1)
	return h
}
