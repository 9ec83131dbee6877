package sequence

import (
	"slices"
	"time"
)

// gap advances the phase of the gap before the first held event.
func (m *machine) gap(now time.Time) {
	missing, since := m.missing(), m.since()
	ended := m.phase == waiting && !now.Before(since.Add(m.wait)) || m.phase == fetching && !now.Before(m.deadline)
	if (m.phase == unseen || ended) && !m.fresh { // another process may have the events
		m.look()
		return
	}
	note := func(kind effectKind) { m.emit(effect{kind: kind, hole: missing, waited: now.Sub(since)}) }
	if m.phase == unseen {
		m.phase = waiting
		note(noteGap)
	}
	if m.phase == waiting && !now.Before(since.Add(m.wait)) {
		m.phase, m.deadline = fetching, now.Add(m.fetch)
		note(noteOverdue)
		if m.fetch > 0 {
			wanted := missing
			wanted.To = min(wanted.To, wanted.From+int64(m.limit)-1)
			m.emit(effect{kind: fetch, hole: wanted})
		}
	}
	if m.phase == fetching && !now.Before(m.deadline) { // immediately if there is no source
		m.phase = overdue
		if m.halt {
			m.phase = halted
			note(noteHalted)
		}
	}
	if m.phase == overdue {
		m.do(effect{kind: open, hole: missing})
	}
}

// fetched holds the events that the source returned for the present gap. Events of a later answer are
// offered like any others.
func (m *machine) fetched(now time.Time, in input) {
	for _, e := range in.events {
		if at, found := m.find(e.Position); !found { // it was not offered meanwhile
			m.insert(at, held{event: e, at: now, fetched: true})
		}
	}
	m.deadline = now // the fetch has ended
}

// abandon drops held events whose claim has ended, and fetched ones, which the source has. The gap before what is
// left is a new one.
func (m *machine) abandon(gone func(Event) bool) {
	was := m.held
	m.held = slices.DeleteFunc(slices.Clone(was), func(h held) bool { return h.fetched || gone(h.event) })
	if len(was) > 0 && (len(m.held) == 0 || m.held[0].event.Position != was[0].event.Position) {
		m.phase = unseen
	}
}

// awaits reports whether the machine waits for the answer to a fetch.
func (m *machine) awaits(wanted Hole) bool {
	if m.phase != fetching || len(m.held) == 0 {
		return false
	}
	missing := m.missing()
	return missing.Epoch == wanted.Epoch && missing.From == wanted.From
}

// missing returns the events that are missing before the first held event.
func (m *machine) missing() Hole {
	first := m.held[0].event
	h := Hole{Key: first.Key, Epoch: first.Epoch, From: 1, To: first.Seq - 1}
	if first.Epoch == m.last.Epoch {
		h.From = m.last.Seq + 1
	}
	return h
}

func (h Hole) has(p Position) bool { return p.Epoch == h.Epoch && h.From <= p.Seq && p.Seq <= h.To }

// since returns when the gap was noticed: the arrival of the first event after it in the same epoch.
// Events of another epoch do not reveal it.
func (m *machine) since() time.Time {
	since := m.held[0].at
	for _, h := range m.held {
		if h.event.Epoch == m.held[0].event.Epoch && h.at.Before(since) {
			since = h.at
		}
	}
	return since
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
	if m.notices(at, h.event) {
		m.phase = unseen // the gap before this one comes first
	}
	m.held = slices.Insert(m.held, at, h)
}

// judge decides the outcome of the offered event.
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
	case !m.fresh && (m.blocks(e) || m.notices(at, e)):
		m.look() // another process may have the missing events
	case m.blocks(e):
		m.reply(now, Refused, &HaltedError{Missing: m.missing()})
	case len(m.held) >= m.limit:
		m.reply(now, Refused, &FullError{Key: e.Key, What: "events of the key are held"})
	case m.room != nil:
		m.reply(now, Refused, m.room)
	default:
		m.insert(at, held{event: e, at: now, fetched: m.foreign})
		m.reply(now, Held, nil)
	}
}

// blocks reports whether the key is halted and the event is not a missing one.
func (m *machine) blocks(e Event) bool { return m.phase == halted && !m.missing().has(e.Position) }

// notices reports whether the event reveals a new gap before it.
func (m *machine) notices(at int, e Event) bool {
	return at == 0 && (len(m.held) == 0 || m.held[0].event.Epoch != e.Epoch)
}

// reply answers the offer and continues with held events.
func (m *machine) reply(now time.Time, o Outcome, err error) {
	m.offered = nil
	m.emit(effect{kind: answer, outcome: o, err: err})
	m.proceed(now)
}

// behind decides the outcome of an event that is not after last.
func (m *machine) behind(now time.Time, e Event, offered bool) {
	if m.holes > 0 {
		m.do(effect{kind: fill, events: []Event{e}, offered: offered})
		return
	}
	m.drop(e, offered)
	m.proceed(now)
}

// drop reports an event as Duplicate or Stale.
func (m *machine) drop(e Event, offered bool) {
	o := Duplicate
	if e.Epoch < m.last.Epoch {
		o = Stale
	}
	m.report(e, o, offered)
}

// report reports the outcome of an event, and removes it if it was held.
func (m *machine) report(e Event, o Outcome, offered bool) {
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
