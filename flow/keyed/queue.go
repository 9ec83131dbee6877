package keyed

import (
	"container/list"
	"context"
	"time"
)

// A task is one thing to do, from its submission to its end.
type task[T any] struct {
	ctx    context.Context
	key    string
	work   T
	box    *mailbox[T]
	waits  bool        // its submitter waits for its end, else for its admission
	done   func(error) // receives the end, unless its submitter waits for that; may be nil
	signal chan error  // capacity 1: what its submitter waits for, sent once; nil if it does not wait
	queued time.Time   // zero unless it is observed
	err    error       // of the task, once it has ended

	in *list.List    // where it stands; nil before that, and once it was taken out to run
	at *list.Element // there
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

// pop takes the first task out of a list; there is one.
func pop[T any](l *list.List) *task[T] {
	t := l.Front().Value.(*task[T])
	t.exit()
	return t
}

// A mailbox is the tasks of a key. It exists while there are any.
type mailbox[T any] struct {
	key     string
	tasks   list.List // admitted, to be run
	outside list.List // waiting for a place in this mailbox
	places  int       // taken: those in tasks, and those that wait for room in the whole
	running bool      // its tasks are being run: it is not in the list of those ready

	turn *list.Element // in that list; nil outside it
}

// queue is who comes next: mailboxes by key, and the list of those that have tasks
// to be run. It starts nothing, waits for nothing and knows no time; its owner
// calls it under one mutex.
//
// A task takes a place in its mailbox first, then one in the whole. Without the
// first it stands outside its mailbox; with it and without the second, in waiting.
// Nothing stands outside a mailbox that has room, and nothing in waiting while
// there is room in the whole: so no task overtakes another.
type queue[T any] struct {
	perKey, total int // bounds

	boxes   map[string]*mailbox[T]
	queued  int       // tasks in all mailboxes
	outside int       // tasks outside theirs
	waiting list.List // tasks that wait for room in the whole
	ready   list.List // mailboxes that have tasks and are not running
}

// put queues a task, or lets it wait for room if it may; full is why it was not
// taken.
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

// admit puts a task that has its places into its mailbox.
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

// take takes the next task of a mailbox out, to be run.
func (q *queue[T]) take(b *mailbox[T]) *task[T] {
	t := pop[T](&b.tasks)
	q.queued--
	q.vacate(b)
	return t
}

// vacate frees a place of a mailbox, and admits those that waited for it, and for room.
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

// leave takes a task out of wherever it stands. It reports false if the task has begun,
// or was admitted and its submitter waits for no more.
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

// forget drops a mailbox that nothing is in.
func (q *queue[T]) forget(b *mailbox[T]) {
	if b.places == 0 && b.outside.Len() == 0 && !b.running {
		delete(q.boxes, b.key)
	}
}

// unready takes a mailbox out of the list of those ready.
func (q *queue[T]) unready(b *mailbox[T]) {
	q.ready.Remove(b.turn)
	b.turn = nil
}

// begin gives the first mailbox that is ready its turn; nil if there is none.
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
