package sequence

import "time"

// machine is the protocol of one key. It does no I/O and reads no clock: Step takes an input and returns
// effects. At most one operation (load, deliver, open, fill) is in progress; its outcome is the next
// input.
type machine struct {
	rules

	loaded bool     // last and holes are those of the store
	fresh  bool     // they were read after the present input arrived
	last   Position // all events up to here are delivered, or recorded as missing
	holes  int64    // open holes: if 0, an event up to last is a duplicate
	held   []held   // sorted; all after last once drained

	phase    phase     // of the gap before held[0]
	deadline time.Time // of a fetch
	failures int       // in a row, of operations that were not for an offer
	retry    time.Time // the next attempt after a failure
	moves    int       // conflicts in a row with other processes
	most     int       // events of one delivery after a failure; 0 means no bound

	offered *Event // not answered yet
	foreign bool   // it was fetched and came late: the source does not wait for its outcome
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
	fetched bool      // not offered: its outcome is not reported
}

// phase is the state of a gap.
type phase int

const (
	unseen   phase = iota // not noticed, or there is none
	waiting               // until the wait ends
	fetching              // until the source answers, or deadline
	overdue               // to be recorded
	halted                // until resumed
)

// An input is an event for the machine.
type input struct {
	kind   inputKind
	event  Event            // offer
	late   bool             // offer: it was fetched, and the answer came late
	room   error            // offer: why it cannot be held
	err    error            // done
	began  bool             // done: the handler ran, so err is not the store's
	state  State            // done, of a load or a fill
	events []Event          // fetched
	gone   func(Event) bool // abandon: whether the source delivers it again
}

type inputKind int

const (
	offer   inputKind = iota
	tick              // time has passed
	done              // the operation in progress has ended
	fetched           // the source has answered
	resume            // an operator accepts the hole
	abandon           // the claim of held events has ended
)

// An effect is an action for the caller.
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
	load    effectKind = iota // operation: read the state of the key
	deliver                   // operation: handle events and move the key to the last
	open                      // operation: record a hole and move the key to its end
	fill                      // operation: handle a late event and close its place in the hole
	answer                    // the outcome of the offer
	settle                    // the outcome of a held event
	fetch                     // ask the source, concurrently
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
	case abandon:
		m.abandon(in.gone)
	}
	m.proceed(now)
	return m.out
}

func (m *machine) emit(e effect) { m.out = append(m.out, e) }

func (m *machine) do(e effect) {
	m.doing = &e
	m.emit(e)
}

// proceed begins the next operation, if any.
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

// look reads the state of the key again.
func (m *machine) look() {
	m.loaded = false
	m.do(effect{kind: load})
}

// drain decides the outcome of the first held event.
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

// run returns the held events that follow each other. After a failure it returns one, then two, then
// four. So a failing event does not block those before it, and too many events for the timeout of
// one step make progress.
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

// due returns the time of the next tick; zero means none.
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
