package history

import (
	"fmt"
	"iter"
)

// Merge yields the events of several histories in the order of Mono, each with
// Writer set to the index of its reader. It needs memory for one event of each.
//
// If two events of different writers have the same nanosecond, an Invoke comes first:
// then the calls overlap, and no false order is claimed. Histories of different boots
// or hosts are refused, since their clocks differ.
func Merge(readers ...*Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := sameClock(readers); err != nil {
			yield(Event{}, err)
			return
		}
		var m merger
		defer m.stop()
		for i, r := range readers {
			m.add(i, r)
		}
		for {
			e, err, ok := m.next()
			if !ok || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func sameClock(readers []*Reader) error {
	for _, r := range readers {
		if a, b := readers[0].Header.Boot, r.Header.Boot; a != b {
			return fmt.Errorf("merge histories: they were recorded on different clocks (boot %q and %q)", a, b)
		}
	}
	return nil
}

type merger struct {
	heads []head
	stops []func()
}

// head is the next event of one history.
type head struct {
	event Event
	err   error
	pull  func() (Event, error, bool)
}

func (m *merger) add(writer int, r *Reader) {
	pull, stop := iter.Pull2(r.Events())
	m.stops = append(m.stops, stop)
	h := head{pull: func() (Event, error, bool) {
		e, err, ok := pull()
		e.Writer = writer
		return e, err, ok
	}}
	var ok bool
	if h.event, h.err, ok = h.pull(); ok {
		m.heads = append(m.heads, h)
	}
}

// next takes the earliest head, by a linear search, since there are few.
func (m *merger) next() (Event, error, bool) {
	if len(m.heads) == 0 {
		return Event{}, nil, false
	}
	first := 0
	for i := range m.heads {
		if m.heads[i].before(m.heads[first]) {
			first = i
		}
	}
	h := &m.heads[first]
	e, err := h.event, h.err
	var ok bool
	if h.event, h.err, ok = h.pull(); !ok {
		m.heads = append(m.heads[:first], m.heads[first+1:]...)
	}
	return e, err, true
}

func (m *merger) stop() {
	for _, stop := range m.stops {
		stop()
	}
}

func (h head) before(g head) bool {
	switch {
	case (h.err != nil) != (g.err != nil):
		return h.err != nil
	case h.event.Mono != g.event.Mono:
		return h.event.Mono < g.event.Mono
	}
	return h.event.Kind == Invoke && g.event.Kind != Invoke
}
