package outbox

import (
	"slices"
	"time"
)

// A row is a message as the relay read it.
type row struct {
	Message
	id     int64 // in the order of delivery
	lane   int64
	parked bool
	cut    bool          // the payload was not kept: those before it in the read fill a batch
	early  time.Duration // until it may be sent; not above 0 if it may now
	age    time.Duration
	// Of the lane, if it waits: whether it is due, the failures of the message at its head, and the
	// id of that message.
	lists    standing
	attempts int
	head     int64
}

// standing is the state of a lane.
type standing int

const (
	free    standing = iota // it does not wait
	due                     // its wait has ended
	waiting                 // it waits; the payload was not read
)

// tried returns the failures of this message.
func (r row) tried() int {
	if r.lists != free && r.head == r.id {
		return r.attempts
	}
	return 0
}

// A batch is the decision on rows that were read: send some, in the order of their ids, and park
// others, whose lanes wait.
type batch struct {
	send, park []row
	delays     []change
	idle       []int64 // lanes that are due and have no messages
	full       bool    // there may be more to read
}

func (b batch) empty() bool { return len(b.send)+len(b.park)+len(b.delays)+len(b.idle) == 0 }

// underway returns the rows to send or park.
func (b batch) underway() []row { return slices.Concat(b.send, b.park) }

// plan decides what to do with rows. held are lanes that began to wait after the read. Rows beyond
// maxBytes of payload remain for the next batch.
//
//   - Free lane: all rows are sent.
//   - Waiting lane: rows are parked, none is sent.
//   - Due lane: the parked rows are sent, and then later rows if no other row is parked.
//
// A row that is cut remains for the next batch, as do those behind it of its lane.
func plan(pic picture, held map[int64]bool, maxBytes int) batch {
	p := planner{batch: batch{idle: pic.idle}, held: held, parked: map[int64]parkedRows{}}
	for _, r := range pic.rows {
		if r.parked {
			q := p.parked[r.lane]
			p.parked[r.lane] = parkedRows{count: q.count + 1, most: pic.each, last: r.id, failing: r.attempts > 0}
		}
	}
	size, cut := 0, map[int64]bool{}
	for _, r := range pic.rows {
		if r.cut {
			cut[r.lane] = true
		}
		if cut[r.lane] {
			p.full = true
			continue
		}
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
	held   map[int64]bool // lanes of which no further row is sent
	parked map[int64]parkedRows
}

// parkedRows are the parked rows of one due lane that were read.
type parkedRows struct {
	count   int
	most    int // limit of the read
	last    int64
	failing bool
}

// all reports whether the lane has no other parked rows.
func (q parkedRows) all() bool { return q.count > 0 && q.count < q.most && !q.failing }

func (p *planner) place(r row) {
	q := p.parked[r.lane]
	open := r.parked || r.lists == free || r.lists == due && (r.id < q.last || q.all())
	switch {
	case p.held[r.lane] || !open:
		p.hold(r)
	case r.early > 0:
		p.delays = append(p.delays, change{row: r, why: WhyDelayed, pause: r.early})
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
