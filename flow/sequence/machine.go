package sequence

import "time"

// machine is the protocol of one key. It does no I/O and reads no clock: Step takes
// what happened and returns what is to be done. At most one operation (load,
// deliver, open, fill) is under way; its outcome is the next input.
type machine struct {
	rules

	loaded bool     // last and holes are what the store said
	fresh  bool     // it said so after the present input came: nobody has moved the key since
	last   Position // all up to here is delivered, or recorded as missing
	holes  int64    // holes that are open: without any, what is behind is a duplicate
	held   []held   // sorted, all after last once drained

	phase    phase     // of the gap before held[0]
	deadline time.Time // of a fetch
	failures int       // in a row, of what was not for an offer
	retry    time.Time // when to try again after one
	moves    int       // how often in a row somebody else was faster
	most     int       // events handed over at once since a failure; 0 if there is no bound

	offered *Event // not answered yet
	foreign bool   // it is not the source's: it was fetched, and came late
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
	late   bool    // offer: it was fetched, and came too late to be taken as such
	room   error   // offer: why it cannot be held
	err    error   // done
	began  bool    // done: the handler was run, so that err is not the store's refusal
	state  State   // done, of a load or a fill
	events []Event // fetched: those of what was asked for
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
	if in.kind != done {
		m.fresh = false
	}
	if !now.Before(m.retry) {
		m.retry = time.Time{}
	}
	switch in.kind {
	case offer:
		m.offered, m.foreign, m.room = &in.event, in.late, in.room
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
		m.look()
	case m.offered != nil:
		m.judge(now)
	default:
		m.drain(now)
	}
}

// look asks the store where the key is, and then goes on.
func (m *machine) look() {
	m.loaded = false
	m.do(effect{kind: load})
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

// run is the events that follow each other, or after a failure only the first, then
// two, then four: one that cannot be taken must not hold up those before it, and what
// is too much for the time of one step must continue.
func (m *machine) run() (events []Event) {
	last := m.last
	for _, h := range m.held {
		if !last.first(h.event.Position) || len(events) > 0 && (len(events) == m.most || h.event.Epoch != last.Epoch) {
			break
		}
		events = append(events, h.event)
		last = h.event.Position
	}
	return events
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
