package sequence

import (
	"slices"
	"time"
)

// judge decides about the offered event.
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
	case !m.fresh && (m.stands(e) || m.notices(at, e)):
		m.look() // another process may have the missing events
	case m.stands(e):
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

// stands reports whether the key is halted and the event is not a missing one.
func (m *machine) stands(e Event) bool { return m.phase == halted && !m.missing().has(e.Position) }

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

// behind decides about an event that is not after last.
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
