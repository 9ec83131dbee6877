package sequence

import (
	"slices"
	"time"
)

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
	case !m.fresh && (m.stands(e) || m.notices(at, e)):
		m.look() // what is missing may have come elsewhere
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

// stands reports whether the key is halted, and the event does not help.
func (m *machine) stands(e Event) bool { return m.phase == halted && !m.missing().has(e.Position) }

// notices reports whether there is a gap before the event that nobody knew of.
func (m *machine) notices(at int, e Event) bool {
	return at == 0 && (len(m.held) == 0 || m.held[0].event.Epoch != e.Epoch)
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
