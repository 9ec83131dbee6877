package keyed

import (
	"context"
	"time"
)

// A task is one thing to do, from its submission to its end.
type task[T any] struct {
	ctx    context.Context
	key    string
	work   T
	box    *mailbox[T]
	waits  bool        // its submitter waits for its end, on signal
	done   func(error) // told of the end, if nobody waits for it; may be nil
	signal chan error  // capacity 1: the end, or, for who does not wait for that, that it was taken or not
	queued time.Time   // zero unless somebody observes
	err    error       // of the task, once it has ended

	in         *line[T] // where it stands; nil once it was taken out to run
	next, prev *task[T]
	alone      [1]*task[T] // itself, if it runs in its submitter's goroutine
	awaited    bool        // its submitter has waited for room: signal is not to be used again
}

// tell passes on the end of a task that was let in and never ran.
func (t *task[T]) tell(err error) {
	switch {
	case t.waits:
		t.signal <- err
	case t.done != nil:
		t.done(err)
	}
}

// spares are ended tasks, to be used again. Their number is bounded.
type spares[T any] struct {
	first *task[T]
	n     int
}

const maxSpares = 1024

func (s *spares[T]) get() *task[T] {
	t := s.first
	if t == nil {
		return &task[T]{}
	}
	s.first, t.next = t.next, nil
	s.n--
	return t
}

// put keeps a task that nobody refers to any more.
func (s *spares[T]) put(t *task[T]) {
	if s.n < maxSpares && !t.awaited {
		*t = task[T]{signal: t.signal, next: s.first}
		s.first = t
		s.n++
	}
}

// A mailbox is the tasks of a key. It exists while there are any.
type mailbox[T any] struct {
	key     string
	tasks   line[T] // to be run
	outside line[T] // waiting for a place in this mailbox
	places  int     // taken: those in tasks, and those that wait for room in the whole
	running bool    // its tasks are being run: it is not in the line of those ready

	next, prev *mailbox[T] // in that line
}

// idle reports whether nothing remains to be remembered.
func (b *mailbox[T]) idle() bool { return b.places == 0 && b.outside.n == 0 && !b.running }

// A line is tasks in order.
type line[T any] struct {
	head, tail *task[T]
	n          int
}

func (l *line[T]) push(t *task[T]) {
	t.in, t.prev, t.next = l, l.tail, nil
	if l.tail == nil {
		l.head = t
	} else {
		l.tail.next = t
	}
	l.tail = t
	l.n++
}

func (l *line[T]) remove(t *task[T]) {
	if t.prev == nil {
		l.head = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		l.tail = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.in, t.prev, t.next = nil, nil, nil
	l.n--
}

// pop takes the first task; there is one.
func (l *line[T]) pop() *task[T] {
	t := l.head
	l.remove(t)
	return t
}
