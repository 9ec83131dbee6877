package saga

import (
	"encoding/json"
	"slices"
	"time"
)

// What a machine can be asked.

// find is the step of a key that was sent; nil if it was not.
func (m *machine) find(key string) *progress {
	i := slices.IndexFunc(m.steps, func(p progress) bool { return p.key == key })
	if i < 0 {
		return nil
	}
	return &m.steps[i]
}

func (m *machine) has(f fate) bool {
	return slices.ContainsFunc(m.steps, func(p progress) bool { return p.fate == f })
}

// quiet reports whether nothing is in flight.
func (m *machine) quiet() bool { return !m.has(inFlight) }

// broken reports whether a step was given up.
func (m *machine) broken() bool { return m.has(refused) || m.has(unknown) }

// pivot is the pivot if it was sent.
func (m *machine) pivot() *progress {
	i := slices.IndexFunc(m.steps, func(p progress) bool { return p.pivot })
	if i < 0 {
		return nil
	}
	return &m.steps[i]
}

// undoing is the steps whose undos are next: those of the last stage that has any.
func (m *machine) undoing() (next []*progress) {
	if m.state != Undoing {
		return nil
	}
	for i := range m.steps {
		p := &m.steps[i]
		switch {
		case !p.undoable() || len(next) > 0 && p.stage < next[0].stage:
		case len(next) > 0 && p.stage > next[0].stage:
			next = []*progress{p}
		default:
			next = append(next, p)
		}
	}
	return next
}

// phase is what the failure of a call means.
type phase int

const (
	beforePivot phase = iota // it can be undone, or needs no undo
	atPivot                  // it cannot be undone: an unknown outcome has to become known
	afterPivot               // it has to be done
	inUndo
)

// phase is that of a call of p now.
func (m *machine) phase(p *progress) phase {
	switch {
	case m.state == Undoing:
		return inUndo
	case m.state == Completing:
		return afterPivot
	case p.pivot:
		return atPivot
	}
	return beforePivot
}

// abortable reports whether the saga can still be aborted though all goes well.
func (m *machine) abortable() bool { return m.state == Running && m.pivot() == nil }

// late reports whether the time of the saga is up while it can be aborted.
func (m *machine) late(now time.Time) bool {
	return m.abortable() && !m.deadline.IsZero() && !now.Before(m.deadline)
}

// inputOf is what a step and its undo are called with.
func (m *machine) inputOf(p *progress) []byte {
	if p.input != nil {
		return p.input
	}
	return m.input
}

// outputs of all steps that were done.
func (m *machine) outputs() Outputs {
	o := Outputs{map[string]json.RawMessage{}}
	for _, p := range m.steps {
		if p.output != nil {
			o.steps[p.key] = p.output
		}
	}
	return o
}
