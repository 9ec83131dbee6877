package keyed

// queue is who comes next: mailboxes by key, and the line of those that have tasks
// to be run. It starts nothing, waits for nothing and knows no time; its owner
// calls it under one mutex.
//
// A task takes a place in its mailbox first, then one in the whole. Who lacks the
// first stands outside its mailbox, who has it and lacks the second in waiting.
// There is nobody outside a mailbox that has room, and nobody in waiting while
// there is room in the whole: so nobody overtakes.
type queue[T any] struct {
	perKey, total int // bounds

	boxes   map[string]*mailbox[T]
	queued  int         // tasks in all mailboxes
	outside int         // tasks outside theirs
	waiting line[T]     // for room in the whole
	ready   *mailbox[T] // the first that has tasks and is not running
	last    *mailbox[T]

	spare    *mailbox[T] // for new keys, linked by next
	spares   int
	admitted []*task[T] // by the present call, and not yet reported
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
		full = &FullError{Key: t.key, All: b.places < q.perKey, Queued: b.tasks.n}
		if full.All {
			full.Queued = q.queued
		}
		q.forget(b)
	case b.places < q.perKey:
		b.places++
		q.waiting.push(t)
	default:
		q.outside++
		b.outside.push(t)
	}
	return full
}

// admit puts a task that has its places into its mailbox.
func (q *queue[T]) admit(t *task[T]) {
	q.queued++
	t.box.tasks.push(t)
	if t.box.tasks.n == 1 && !t.box.running {
		q.enlist(t.box)
	}
}

// take takes the next task of a mailbox out, to be run.
func (q *queue[T]) take(b *mailbox[T]) *task[T] {
	t := b.tasks.pop()
	q.queued--
	q.vacate(b)
	return t
}

// vacate frees a place of a mailbox and lets in who waited for it, and for room.
func (q *queue[T]) vacate(b *mailbox[T]) {
	b.places--
	if b.outside.n > 0 {
		q.outside--
		b.places++
		q.waiting.push(b.outside.pop())
	}
	for q.waiting.n > 0 && q.queued < q.total {
		t := q.waiting.pop()
		q.admit(t)
		if !t.waits {
			q.admitted = append(q.admitted, t)
		}
	}
}

// leave takes a task out of wherever it stands. It reports false if it is run
// already.
func (q *queue[T]) leave(t *task[T]) bool {
	b, in := t.box, t.in
	if in == nil {
		return false
	}
	in.remove(t)
	switch in {
	case &b.outside:
		q.outside--
	case &q.waiting:
		q.vacate(b)
	default:
		q.queued--
		if b.tasks.n == 0 && !b.running {
			q.delist(b) // before another one is let in, which enlists it
		}
		q.vacate(b)
	}
	q.forget(b)
	return true
}

// box finds the mailbox of a key, or makes it.
func (q *queue[T]) box(key string) *mailbox[T] {
	b := q.boxes[key]
	if b != nil {
		return b
	}
	if b = q.spare; b == nil {
		b = &mailbox[T]{}
	} else {
		q.spare, b.next = b.next, nil
		q.spares--
	}
	b.key = key
	q.boxes[key] = b
	return b
}

// forget drops a mailbox that nothing is in.
func (q *queue[T]) forget(b *mailbox[T]) {
	if !b.idle() {
		return
	}
	delete(q.boxes, b.key)
	if q.spares < maxSpares {
		b.key, b.next, q.spare = "", q.spare, b
		q.spares++
	}
}

// enlist puts a mailbox at the end of the line of those ready.
func (q *queue[T]) enlist(b *mailbox[T]) {
	b.prev, b.next = q.last, nil
	if q.last == nil {
		q.ready = b
	} else {
		q.last.next = b
	}
	q.last = b
}

// delist takes a mailbox out of that line, wherever it stands.
func (q *queue[T]) delist(b *mailbox[T]) {
	if b.prev == nil {
		q.ready = b.next
	} else {
		b.prev.next = b.next
	}
	if b.next == nil {
		q.last = b.prev
	} else {
		b.next.prev = b.prev
	}
	b.prev, b.next = nil, nil
}

// begin gives the first mailbox that is ready its turn; nil if there is none.
func (q *queue[T]) begin() *mailbox[T] {
	b := q.ready
	if b != nil {
		q.delist(b)
		b.running = true
	}
	return b
}

// end ends a turn.
func (q *queue[T]) end(b *mailbox[T]) {
	b.running = false
	if b.tasks.n > 0 {
		q.enlist(b)
	} else {
		q.forget(b)
	}
}
