package outbox

import (
	"slices"
	"time"
)

// A row is a message as the relay read it.
type row struct {
	Message
	id     int64 // its place in the order
	lane   int64
	parked bool
	early  time.Duration // until it may be sent, if that is above 0
	age    time.Duration
	// Of the lane, if it is among those that wait: whether it is due, how often the
	// message at its head has failed, and that message's id.
	lists    standing
	attempts int
	head     int64
}

// standing is whether a lane waits.
type standing int

const (
	free    standing = iota // it does not
	due                     // its time has come
	waiting                 // it has not; the payload was not read
)

// tried is how often this message has failed.
func (r row) tried() int {
	if r.lists != free && r.head == r.id {
		return r.attempts
	}
	return 0
}

// A batch is what is done with rows that were read: send some, in order of their
// ids, and park others, whose lanes wait.
type batch struct {
	send, park []row
	delays     []change
	idle       []int64 // lanes that wait for nothing
	full       bool    // there may be more to read
}

func (b batch) empty() bool { return len(b.send)+len(b.park)+len(b.delays)+len(b.idle) == 0 }

// underway are the rows that b does something with.
func (b batch) underway() []row { return slices.Concat(b.send, b.park) }

// plan decides about what was read. held are lanes that were found to wait after
// that. What is beyond maxBytes of payload stays for the next batch.
//
// Of a lane that is free everything is sent. Of one that waits nothing is, and what
// was not parked is parked. Of one that is due the parked rows are sent; and then
// what came after them, if these were all.
func plan(pic picture, held map[int64]bool, maxBytes int) batch {
	p := planner{batch: batch{idle: pic.idle}, held: held, parked: map[int64]parkedRows{}}
	for _, r := range pic.rows {
		if r.parked {
			q := p.parked[r.lane]
			p.parked[r.lane] = parkedRows{count: q.count + 1, most: pic.each, last: r.id, failing: r.attempts > 0}
		}
	}
	size := 0
	for _, r := range pic.rows {
		if size += len(r.Payload); size > maxBytes && size > len(r.Payload) {
			p.full = true
			break
		}
		p.place(r)
	}
	return p.batch
}

type planner struct {
	batch
	held   map[int64]bool // it and what follows of these lanes is not sent
	parked map[int64]parkedRows
}

// parkedRows are those of one lane that were read: only of lanes that are due.
type parkedRows struct {
	count   int
	most    int // that are read
	last    int64
	failing bool
}

// all reports whether the lane had no more.
func (q parkedRows) all() bool { return q.count > 0 && q.count < q.most && !q.failing }

func (p *planner) place(r row) {
	q := p.parked[r.lane]
	open := r.parked || r.lists == free || r.lists == due && (r.id < q.last || q.all())
	switch {
	case p.held[r.lane] || !open:
		p.hold(r)
	case r.early > 0:
		p.delays = append(p.delays, change{row: r, why: whyDelayed, pause: r.early})
		p.hold(r)
	default:
		p.send = append(p.send, r)
	}
}

func (p *planner) hold(r row) {
	if p.held == nil {
		p.held = map[int64]bool{}
	}
	p.held[r.lane] = true
	if !r.parked {
		p.park = append(p.park, r)
	}
}
