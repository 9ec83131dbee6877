package conformance

import "maps"

// A key is a branch of a play: most have one, which is the zero key.
type key struct{ branch, step string }

// A variation is a deviation of a message.
type variation int

const (
	plain      variation = iota
	otherInput           // the amount of a first is another than the first time
	late                 // its deadline has passed
	headless             // a header is missing
)

// A message is one message of a play.
type message struct {
	to   key
	kind kind
	as   variation
}

// A model is the expected state of an account. It is immutable: with returns another one.
type model struct {
	protocol Protocol
	capacity int64
	branches map[key]state
}

func newModel(p Protocol, capacity int64) model { return model{p, capacity, map[key]state{}} }

// with returns the answer to a message, and the model after it.
func (m model) with(msg message) (answer, model) {
	switch msg.as {
	case late, headless:
		return unheard, m
	case otherInput:
		return not, m
	}
	e := table[m.branches[msg.to]][msg.kind]
	if m.branches[msg.to] == unknown && msg.kind == first && m.units()+1 > m.capacity {
		e = expected{no, refused}
	}
	m.branches = maps.Clone(m.branches)
	m.branches[msg.to] = e.next
	return e.answer, m
}

// effects returns the sum over all branches.
func (m model) effects() (sum Effects) {
	for _, s := range m.branches {
		e := m.protocol.of(s)
		sum.Held += e.Held
		sum.Confirmed += e.Confirmed
	}
	return sum
}

func (m model) units() int64 {
	e := m.effects()
	return e.Held + e.Confirmed
}
