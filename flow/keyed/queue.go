package keyed

import (
	"container/list"
	"context"
	"time"
)

// A task is one call, from its submission to its end.
type task[T any] struct {
	ctx    context.Context
	key    string
	work   T
	box    *mailbox[T]
	waits  bool        // the submitter waits for the end; if false, for the admission
	done   func(error) // receives the outcome unless waits; may be nil
	signal chan error  // capacity 1: what the submitter waits for, sent once; nil if it does not wait
	queued time.Time   // zero unless it is observed
	err    error       // the outcome, once the task has ended

	in *list.List    // the list that has the task; nil before it is queued and once it runs
	at *list.Element // its place in that list
}

// drop reports err for a task that was admitted and never ran.
func (t *task[T]) drop(err error) {
	switch {
	case t.waits:
		t.signal <- err
	case t.done != nil:
		t.done(err)
	}
}

func (t *task[T]) enter(l *list.List) { t.in, t.at = l, l.PushBack(t) }

func (t *task[T]) exit() {
	t.in.Remove(t.at)
	t.in, t.at = nil, nil
}

// pop removes the first task of a list that is not empty.
func pop[T any](l *list.List) *task[T] {
	t := l.Front().Value.(*task[T])
	t.exit()
	return t
}

// A mailbox has the tasks of a key. It exists while there are any.
type mailbox[T any] struct {
	key     string
	tasks   list.List // admitted, not begun
	outside list.List // waiting for a place in this mailbox
	places  int       // used by tasks and by those that wait for room in the queue
	running bool      // a task of it runs: it is not in the ready list

	turn *list.Element // in the ready list; nil outside of it
}

// queue decides which task is next: mailboxes by key, and the list of mailboxes that are ready. It
// is pure: it starts nothing, waits for nothing and reads no clock. Its owner holds one mutex.
//
// A task needs a place in its mailbox first, then one in the queue. Without the first it is in
// outside of its mailbox; with the first only, in waiting. outside is empty while the mailbox has
// room, and waiting is empty while the queue has room: so no task overtakes another.
type queue[T any] struct {
	perKey, total int // bounds

	boxes   map[string]*mailbox[T]
	queued  int       // tasks in all mailboxes
	outside int       // tasks outside of their mailboxes
	waiting list.List // tasks that wait for room in the queue
	ready   list.List // mailboxes that have tasks and are not running
}

// put queues a task, or lets it wait for room if wait is set. full is set if it was rejected.
func (q *queue[T]) put(t *task[T], wait bool) (full *FullError) {
	b := q.box(t.key)
	t.box = b
	switch {
	case b.places < q.perKey && q.queued < q.total:
		b.places++
		q.admit(t)
	case !wait:
		full = &FullError{Key: t.key, All: b.places < q.perKey, Queued: b.tasks.Len()}
		if full.All {
			full.Queued = q.queued
		}
		q.forget(b)
	case b.places < q.perKey:
		b.places++
		t.enter(&q.waiting)
	default:
		q.outside++
		t.enter(&b.outside)
	}
	return full
}

// admit puts a task that has both places into its mailbox.
func (q *queue[T]) admit(t *task[T]) {
	q.queued++
	t.enter(&t.box.tasks)
	if t.box.turn == nil && !t.box.running {
		t.box.turn = q.ready.PushBack(t.box)
	}
	if !t.waits && t.signal != nil {
		t.signal <- nil
	}
}

// take removes the next task of a mailbox, to run it.
func (q *queue[T]) take(b *mailbox[T]) *task[T] {
	t := pop[T](&b.tasks)
	q.queued--
	q.vacate(b)
	return t
}

// vacate frees a place of a mailbox and admits tasks that waited for it or for room.
func (q *queue[T]) vacate(b *mailbox[T]) {
	b.places--
	if b.outside.Len() > 0 {
		q.outside--
		b.places++
		pop[T](&b.outside).enter(&q.waiting)
	}
	for q.waiting.Len() > 0 && q.queued < q.total {
		q.admit(pop[T](&q.waiting))
	}
}

// leave removes a task from the list that has it. It reports false if the task has begun, or was
// admitted and its submitter does not wait for the end.
func (q *queue[T]) leave(t *task[T]) bool {
	b, in := t.box, t.in
	if in == nil || in == &b.tasks && !t.waits {
		return false
	}
	t.exit()
	switch in {
	case &b.outside:
		q.outside--
	case &q.waiting:
		q.vacate(b)
	default:
		q.queued--
		if b.tasks.Len() == 0 && !b.running {
			q.unready(b) // before another one is admitted, which makes it ready
		}
		q.vacate(b)
	}
	q.forget(b)
	return true
}

// box returns the mailbox of a key.
func (q *queue[T]) box(key string) *mailbox[T] {
	b := q.boxes[key]
	if b == nil {
		b = &mailbox[T]{key: key}
		q.boxes[key] = b
	}
	return b
}

// forget deletes an empty mailbox.
func (q *queue[T]) forget(b *mailbox[T]) {
	if b.places == 0 && b.outside.Len() == 0 && !b.running {
		delete(q.boxes, b.key)
	}
}

// unready removes a mailbox from the ready list.
func (q *queue[T]) unready(b *mailbox[T]) {
	q.ready.Remove(b.turn)
	b.turn = nil
}

// begin starts the turn of the first ready mailbox; nil if there is none.
func (q *queue[T]) begin() *mailbox[T] {
	if q.ready.Len() == 0 {
		return nil
	}
	b := q.ready.Front().Value.(*mailbox[T])
	q.unready(b)
	b.running = true
	return b
}

// end ends a turn.
func (q *queue[T]) end(b *mailbox[T]) {
	b.running = false
	if b.tasks.Len() > 0 {
		b.turn = q.ready.PushBack(b)
	} else {
		q.forget(b)
	}
}
