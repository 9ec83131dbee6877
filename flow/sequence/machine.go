package sequence

import (
	"errors"
	"slices"
	"time"
)

// machine is the protocol of one key. It does no I/O and reads no clock: Step takes
// what happened and returns what is to be done. At most one operation (load,
// deliver, open, fill) is under way; its outcome is the next input.
type machine struct {
	rules

	loaded bool     // last and holes are what the store says
	last   Position // all up to here is delivered, or recorded as missing
	holes  int64    // holes that are open: without any, what lies behind is a duplicate
	held   []held   // sorted, all after last once drained

	phase    phase     // of the gap before held[0]
	deadline time.Time // of a fetch
	failures int       // in a row, of what was not for an offer
	retry    time.Time // when to try again after one
	moves    int       // how often in a row somebody else was faster

	offered *Event // not answered yet
	room    error  // why it cannot be held; nil if it can
	doing   *effect
	out     []effect
}

// rules are the same for all keys.
type rules struct {
	wait    time.Duration // for missing events
	limit   int           // events held
	fetch   time.Duration // how long a fetch may take; 0 if there is no source
	halt    bool
	backoff func(failures int) time.Duration
}

type held struct {
	event   Event
	at      time.Time // when it came
	fetched bool      // not offered: nobody wants to know
}

// phase is where a gap is.
type phase int

const (
	unseen   phase = iota // or there is none
	waiting               // until the wait ends
	fetching              // until the source answers, or deadline
	overdue               // to be recorded
	halted                // until resumed
)

// An input is what happened.
type input struct {
	kind   inputKind
	event  Event   // offer
	room   error   // offer: why it cannot be held
	err    error   // done
	state  State   // done, of a load or a fill
	at     Hole    // fetched: what was asked for
	events []Event // fetched
}

type inputKind int

const (
	offer   inputKind = iota
	tick              // time has passed
	done              // the operation under way has ended
	fetched           // the source has answered
	resume            // an operator accepts the hole
)

// An effect is something to be done.
type effect struct {
	kind    effectKind
	events  []Event       // deliver, fill, settle
	offered bool          // deliver, fill: it is the offered event
	hole    Hole          // open, fetch and the notices
	waited  time.Duration // notices
	outcome Outcome       // answer, settle
	err     error         // answer, failed
}

type effectKind int

const (
	load    effectKind = iota // operation: ask the store where the key is
	deliver                   // operation: hand events over and move the key to the last
	open                      // operation: record a hole and move the key to its end
	fill                      // operation: hand over a late event and close its hole
	answer                    // the offer's outcome
	settle                    // the outcome of what was held
	fetch                     // ask the source, beside everything else
	noteGap
	noteOverdue
	noteRecorded
	noteHalted
	noteFailed
)

// Step takes one input. The effects are in order; an operation is the last.
func (m *machine) Step(now time.Time, in input) []effect {
	m.out = nil
	switch in.kind {
	case offer:
		m.offered, m.room = &in.event, in.room
	case done:
		m.ended(now, in)
	case fetched:
		m.fetched(now, in)
	case resume:
		if m.phase == halted {
			m.phase = overdue
		}
		m.retry = time.Time{}
	}
	m.proceed(now)
	return m.out
}

func (m *machine) emit(e effect) { m.out = append(m.out, e) }

func (m *machine) do(e effect) {
	m.doing = &e
	m.emit(e)
}

// proceed begins the next operation, if there is one to begin.
func (m *machine) proceed(now time.Time) {
	switch {
	case m.offered == nil && (len(m.held) == 0 || now.Before(m.retry)):
	case !m.loaded:
		m.do(effect{kind: load})
	case m.offered != nil:
		m.judge(now)
	default:
		m.drain(now)
	}
}

// judge decides what is to be done with the offered event.
func (m *machine) judge(now time.Time) {
	e := *m.offered
	at, found := m.find(e.Position)
	switch {
	case !m.last.Before(e.Position):
		m.behind(now, e, true)
	case m.last.first(e.Position) && at == 0 && !found:
		m.do(effect{kind: deliver, events: []Event{e}, offered: true})
	case found:
		m.reply(now, Repeated, nil)
	case m.phase == halted && !m.missing().has(e.Position):
		m.reply(now, Refused, &HaltedError{Missing: m.missing()})
	case len(m.held) >= m.limit:
		m.reply(now, Refused, &FullError{Key: e.Key, What: "events of the key are held"})
	case m.room != nil:
		m.reply(now, Refused, m.room)
	default:
		m.insert(at, held{event: e, at: now})
		m.reply(now, Held, nil)
	}
}

// reply answers the offer, and goes on with what is held.
func (m *machine) reply(now time.Time, o Outcome, err error) {
	m.offered = nil
	m.emit(effect{kind: answer, outcome: o, err: err})
	m.proceed(now)
}

// behind deals with an event that does not come after last.
func (m *machine) behind(now time.Time, e Event, offered bool) {
	if m.holes > 0 {
		m.do(effect{kind: fill, events: []Event{e}, offered: offered})
		return
	}
	m.drop(e, offered)
	m.proceed(now)
}

// drop tells that an event was delivered before, or is of an epoch that has passed.
func (m *machine) drop(e Event, offered bool) {
	o := Duplicate
	if e.Epoch < m.last.Epoch {
		o = Stale
	}
	m.told(e, o, offered)
}

// told passes on the outcome of an event, and takes it out if it was held.
func (m *machine) told(e Event, o Outcome, offered bool) {
	if offered {
		m.offered = nil
		m.emit(effect{kind: answer, events: []Event{e}, outcome: o})
		return
	}
	if !m.held[0].fetched {
		m.emit(effect{kind: settle, events: []Event{e}, outcome: o})
	}
	m.held = slices.Delete(m.held, 0, 1)
}

// drain deals with the first of what is held.
func (m *machine) drain(now time.Time) {
	first := m.held[0].event
	switch {
	case !m.last.Before(first.Position):
		m.behind(now, first, false)
	case m.last.first(first.Position):
		m.do(effect{kind: deliver, events: m.run()})
	default:
		m.gap(now)
	}
}

// run is the events that follow each other, or only the first if that failed
// before: one that cannot be taken must not hold up those before it.
func (m *machine) run() (events []Event) {
	last := m.last
	for _, h := range m.held {
		if !last.first(h.event.Position) || len(events) > 0 && (m.failures > 0 || h.event.Epoch != last.Epoch) {
			break
		}
		events = append(events, h.event)
		last = h.event.Position
	}
	return events
}

// gap deals with what is missing before the first of what is held.
func (m *machine) gap(now time.Time) {
	missing, since := m.missing(), m.since()
	note := func(kind effectKind) { m.emit(effect{kind: kind, hole: missing, waited: now.Sub(since)}) }
	if m.phase == unseen {
		m.phase = waiting
		note(noteGap)
	}
	if m.phase == waiting && !now.Before(since.Add(m.wait)) {
		m.phase = overdue
		note(noteOverdue)
		if m.fetch > 0 {
			m.phase, m.deadline = fetching, now.Add(m.fetch)
			wanted := missing
			wanted.To = min(wanted.To, wanted.From+int64(m.limit)-1)
			m.emit(effect{kind: fetch, hole: wanted})
		} else if m.halt {
			m.phase = halted
			note(noteHalted)
		}
	}
	if m.phase == fetching && !now.Before(m.deadline) {
		m.unanswered(now)
	}
	if m.phase == overdue {
		m.do(effect{kind: open, hole: missing})
	}
}

// unanswered is what follows a fetch that did not close the gap.
func (m *machine) unanswered(now time.Time) {
	m.phase = overdue
	if m.halt {
		m.phase = halted
		m.emit(effect{kind: noteHalted, hole: m.missing(), waited: now.Sub(m.since())})
	}
}

// fetched holds what a source gave of what it was asked for. An answer that comes
// too late is not for the machine: its events are offered like any others.
func (m *machine) fetched(now time.Time, in input) {
	for _, e := range in.events {
		if at, found := m.find(e.Position); !found && in.at.has(e.Position) && m.last.Before(e.Position) {
			m.insert(at, held{event: e, at: now, fetched: true})
		}
	}
	if len(m.held) > 0 && !m.last.first(m.held[0].event.Position) {
		m.unanswered(now)
	}
}

// awaits reports whether the answer to a fetch is waited for.
func (m *machine) awaits(wanted Hole) bool {
	if m.phase != fetching || len(m.held) == 0 {
		return false
	}
	missing := m.missing()
	return missing.Epoch == wanted.Epoch && missing.From == wanted.From
}

// ended takes the outcome of the operation under way.
func (m *machine) ended(now time.Time, in input) {
	op := *m.doing
	m.doing = nil
	switch {
	case in.err == nil:
		if !now.Before(m.retry) {
			m.retry = time.Time{}
		}
		m.succeeded(op, in)
	case op.kind == fill && errors.Is(in.err, ErrNoHole):
		m.holes = in.state.Holes
		m.drop(op.events[0], op.offered)
	case errors.Is(in.err, ErrMoved) && m.moves < 3:
		m.loaded = false
		m.moves++
	default:
		m.failed(now, op, in.err)
	}
}

func (m *machine) succeeded(op effect, in input) {
	if op.kind == load {
		m.loaded, m.holes = true, in.state.Holes
		m.move(in.state.Position)
		return
	}
	m.failures, m.moves = 0, 0
	switch op.kind {
	case open:
		m.holes++
		m.emit(effect{kind: noteRecorded, hole: op.hole})
		m.move(Position{op.hole.Epoch, op.hole.To})
	case fill:
		m.holes = in.state.Holes
		m.told(op.events[0], Late, op.offered)
	case deliver:
		for _, e := range op.events {
			m.told(e, Delivered, op.offered)
		}
		m.move(op.events[len(op.events)-1].Position)
	}
}

// move sets the position. What gap there is now has not been dealt with.
func (m *machine) move(to Position) {
	if m.last != to {
		m.last, m.phase = to, unseen
	}
}

// failed takes a failure: what the store has is not known for certain then. An
// offered event is given back with it; anything else is tried again later.
func (m *machine) failed(now time.Time, op effect, err error) {
	m.loaded, m.moves = false, 0
	if m.offered != nil && (op.offered || op.kind == load) {
		m.offered = nil
		m.emit(effect{kind: answer, err: err})
		return
	}
	m.failures++
	m.retry = now.Add(m.backoff(m.failures))
	m.emit(effect{kind: noteFailed, err: err})
}

// abort forgets an operation whose outcome never came.
func (m *machine) abort() {
	if m.doing != nil {
		m.doing, m.offered, m.loaded = nil, nil, false
	}
}

// missing is what is missing before the first of what is held.
func (m *machine) missing() Hole {
	first := m.held[0].event
	h := Hole{Key: first.Key, Epoch: first.Epoch, From: 1, To: first.Seq - 1}
	if first.Epoch == m.last.Epoch {
		h.From = m.last.Seq + 1
	}
	return h
}

func (h Hole) has(p Position) bool { return p.Epoch == h.Epoch && h.From <= p.Seq && p.Seq <= h.To }

// since is when the gap was noticed: when the first event came that is behind it.
// Another epoch's do not tell that this one's are missing.
func (m *machine) since() time.Time {
	since := m.held[0].at
	for _, h := range m.held {
		if h.event.Epoch == m.held[0].event.Epoch && h.at.Before(since) {
			since = h.at
		}
	}
	return since
}

// due is when a tick is to come; zero if none is needed.
func (m *machine) due() time.Time {
	switch {
	case len(m.held) == 0:
		return time.Time{}
	case !m.retry.IsZero():
		return m.retry
	case m.phase == waiting:
		return m.since().Add(m.wait)
	case m.phase == fetching:
		return m.deadline
	}
	return time.Time{}
}

func (m *machine) find(p Position) (at int, found bool) {
	return slices.BinarySearchFunc(m.held, p, func(h held, p Position) int {
		switch {
		case h.event.Before(p):
			return -1
		case p.Before(h.event.Position):
			return 1
		}
		return 0
	})
}

func (m *machine) insert(at int, h held) {
	if at == 0 && len(m.held) > 0 && m.held[0].event.Epoch != h.event.Epoch {
		m.phase = unseen // the gap before this one comes first
	}
	m.held = slices.Insert(m.held, at, h)
}
