package sequence

import (
	"errors"
	"time"
)

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
	case errors.Is(in.err, ErrMoved):
		m.loaded = false
		if m.moves++; m.moves > 3 {
			m.failed(now, op, in.err)
		}
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

// failed takes a failure. Whether it was done for all that does not matter: the store
// compares, and what is tried again finds the key moved. An offered event is given
// back with the error; anything else is tried again later.
func (m *machine) failed(now time.Time, op effect, err error) {
	m.moves = 0
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
	m.doing, m.offered = nil, nil
}
