package sequence

import (
	"errors"
	"time"
)

// ended handles the outcome of the operation in progress.
func (m *machine) ended(now time.Time, in input) {
	op := *m.doing
	m.doing = nil
	switch {
	case in.err == nil:
		m.succeeded(op, in)
	case op.kind == fill && !in.began && errors.Is(in.err, ErrNoHole):
		m.holes = in.state.Holes
		m.drop(op.events[0], op.offered)
	case !in.began && errors.Is(in.err, ErrConflict):
		m.loaded = false
		if m.moves++; m.moves > 3 {
			m.failed(now, op, in.err)
		}
	default:
		m.failed(now, op, in.err)
	}
}

func (m *machine) succeeded(op effect, in input) {
	m.fresh = m.fresh || op.kind != fill
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
		m.report(op.events[0], Late, op.offered)
	case deliver:
		for _, e := range op.events {
			m.report(e, Delivered, op.offered)
		}
		if m.most *= 2; m.most > m.limit {
			m.most = 0
		}
		m.move(op.events[len(op.events)-1].Position)
	}
}

// move sets the position. A gap after it is a new one, and a retry of an earlier operation is void.
func (m *machine) move(to Position) {
	if m.last != to {
		m.last, m.phase, m.retry = to, unseen, time.Time{}
	}
}

// failed handles a failure. If the operation was done nevertheless, the store detects it by the
// position: the retry finds the key moved. An offered event gets the error; anything else is retried
// later.
func (m *machine) failed(now time.Time, op effect, err error) {
	m.moves = 0
	if m.offered != nil && (op.offered || op.kind == load) {
		m.offered = nil
		m.emit(effect{kind: answer, err: err})
		return
	}
	m.later(now)
	m.emit(effect{kind: noteFailed, err: err})
}

// later schedules a retry, with one event.
func (m *machine) later(now time.Time) {
	m.failures++
	m.most = 1
	m.retry = now.Add(m.backoff(m.failures))
}

// abort ends an operation without an outcome. Held events are retried later.
func (m *machine) abort(now time.Time) {
	if m.doing != nil {
		m.later(now)
	}
	m.doing, m.offered = nil, nil
}
