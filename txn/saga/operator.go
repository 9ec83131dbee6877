package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator changes sagas by hand. It needs no definitions and owns no shard: what
// it appends stands behind what it has read, or it reads again. The saga is due at
// once then, for the owner of its shard. It is safe for concurrent use.
//
// A change that the saga's state does not allow is a [*StateError], and an id without a
// saga an [ErrNone].
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator makes an operator on a journal, which stays open.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// Operator is one on the engine's journal.
func (e *Engine) Operator() *Operator { return NewOperator(e.coordinator.Journal()) }

// List goes through the sagas that pass in the order of their ids; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry calls an undo that was given up again, or with an empty step all of them; the
// saga is UNDOING again. A step or an undo that waits for its next attempt is called now,
// and its attempts are counted from one; an empty step means each of those if no undo was
// given up.
func (o *Operator) Retry(ctx context.Context, id, step string, by By) error {
	return o.act(ctx, "retry", id, step, by, func(m *machine) (entries []journal.Entry, _ error) {
		if step == "" && !m.has(dead) {
			entries = m.retries(by)
		}
		if len(entries) == 0 {
			entries = []journal.Entry{record(recordRetry, step, by)}
		}
		return entries, nil
	})
}

// Edit is [Operator.Retry] of a step with another input, JSON, from now on. It is possible
// for undos, and behind the pivot. A call
// with the input before it may have been done already, or be done yet. If its target
// compares inputs, as a barrier does ([branch.ErrOtherInput]), the step is then done with
// that input, and counts as such. Otherwise this is found out only if the process that
// made the call still lives. The hook Crossed reports it, and so do [Outcome].Crossed and
// the step's Err in [Replay], if the saga had not ended before.
func (o *Operator) Edit(ctx context.Context, id, step string, input json.RawMessage, by By) error {
	if !json.Valid(input) || len(input) > driver.MaxPayload/2 || step == "" {
		return bug("edit", id, fmt.Errorf("the input is not JSON, has more than %d bytes, or is for no step", driver.MaxPayload/2))
	}
	return o.act(ctx, "edit", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordRetry, step, note{By: by, Input: input})}, nil
	})
}

// retries are the records that have each pending step called now.
func (m *machine) retries(by By) (entries []journal.Entry) {
	for i := range m.steps {
		if p := &m.steps[i]; m.pending(p) && len(entries) < driver.MaxRecords {
			entries = append(entries, record(recordRetry, p.key, by))
		}
	}
	return entries
}

// Skip goes on without an undo, whether it was given up or is tried still: somebody
// has taken care of what the step did. Behind the pivot it goes on without the step:
// the saga will have succeeded but for that. If nothing else is left to undo the saga
// has ended when Skip returns.
func (o *Operator) Skip(ctx context.Context, id, step string, by By) error {
	return o.act(ctx, "skip", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordSkip, step, by)}, nil
	})
}

// Resolve closes a dead letter: whatever is left of it was taken care of. The saga is
// RESOLVED, for good, when Resolve returns.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, "", by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordResolved, "", by)}, nil
	})
}

// Now ends what the saga waits for: its start, a [Sleep], a [Signal], as if its time were
// up, or the time until something is tried again.
func (o *Operator) Now(ctx context.Context, id string, by By) error {
	return o.act(ctx, "end the wait of", id, "", by, func(m *machine) (entries []journal.Entry, err error) {
		if !m.start.IsZero() && len(m.steps) == 0 {
			entries = append(entries, record(recordNow, "", by))
		}
		for i := range m.steps {
			switch p := &m.steps[i]; {
			case p.fate == inFlight && p.wait:
				entries = append(entries, record(recordNow, p.key, by))
			case m.pending(p):
				entries = append(entries, record(recordRetry, p.key, by))
			}
		}
		if len(entries) == 0 {
			return nil, errors.New("it waits for nothing")
		}
		return entries[:min(len(entries), driver.MaxRecords)], nil
	})
}

// Abort has a saga undone that has not called its pivot: what it has done, and what may
// have happened of what is under way. It is UNDOING when Abort returns, or has ended if
// there is nothing to undo. The actor and the reason are the saga's reason.
func (o *Operator) Abort(ctx context.Context, id string, by By) error {
	return o.act(ctx, "abort", id, "", by, func(m *machine) ([]journal.Entry, error) {
		if p := m.pivot(); (m.state == Running || m.before == Running) && p != nil && p.fate != refused {
			return nil, fmt.Errorf("its pivot %q may have happened: the saga continues until its outcome is known", p.key)
		}
		return []journal.Entry{record(recordDecide, decideAbort, why{Error: said(fmt.Errorf("%s: %s", by.Actor, by.Reason))})}, nil
	})
}

// Done says that a step has happened which was called and did not answer, with its
// output, JSON that the step's type can take; nil is null. Most of all it is for a pivot
// whose target is gone: only a person who looks can know its outcome. It is
// possible once the steps before it have been done.
func (o *Operator) Done(ctx context.Context, id, step string, output json.RawMessage, by By) error {
	if output == nil {
		output = json.RawMessage("null")
	}
	if !json.Valid(output) || len(output) > driver.MaxPayload {
		return bug("settle", id, fmt.Errorf("the output is not JSON, or has more than %d bytes", driver.MaxPayload))
	}
	return o.settle(ctx, id, step, by, journal.Entry{Kind: recordDone, Step: step, Data: output})
}

// NotDone says that a step has not happened which was called and did not answer, and
// never will: whatever it was sent does not arrive any more. The saga is undone then. It
// is possible up to the pivot, once the steps before it have been done.
func (o *Operator) NotDone(ctx context.Context, id, step string, by By) error {
	return o.settle(ctx, id, step, by, record(recordFailed, step, why{Error: said(fmt.Errorf("%s: %s", by.Actor, by.Reason))}))
}

func (o *Operator) settle(ctx context.Context, id, step string, by By, became journal.Entry) error {
	return o.act(ctx, "settle", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordSettle, step, by), became}, nil
	})
}

// act appends what follows from a saga as it is, in the name of by.
func (o *Operator) act(ctx context.Context, op, id, step string, by By, follows func(*machine) ([]journal.Entry, error)) error {
	if err := by.Check(op, id); err != nil {
		return err
	}
	return o.append(ctx, op, id, step, follows)
}

// append appends what follows from a saga as it is, and its end if that follows.
func (o *Operator) append(ctx context.Context, op, id, step string, follows func(*machine) ([]journal.Entry, error)) error {
	return records.Change(ctx, o.journal, o.now, op, id, step, func(t coordinator.Transaction[machine]) ([]journal.Entry, error) {
		entries, err := follows(&t.State)
		if err != nil || len(entries) == 0 {
			return nil, err
		}
		after, err := t.State.with(entries...)
		if err == nil && (after.state == Undoing && len(after.undoing()) == 0 || after.state == Resolved) {
			entries = append(entries, after.ending())
		}
		return entries, err
	})
}

// What operators do to a machine.

func noted(e journal.Entry) (n note, err error) {
	if err = json.Unmarshal(e.Data, &n); err == nil && (n.Actor == "" || n.Reason == "") {
		err = errors.New("the actor and the reason are missing")
	}
	return n, err
}

// retry has tried again at once what waits, or was given up: a step or its undo, or with
// no step all of them. Its attempts count from zero again. The input can be another one from now on, but not that of a step which could have been called and
// may yet be undone by what it was called with.
func (m *machine) retry(e journal.Entry) error {
	n, err := noted(e)
	if err != nil {
		return err
	}
	found, calling := m.released && e.Step == "", m.calling()
	for i := range m.steps {
		p := &m.steps[i]
		if e.Step != "" && p.key != e.Step || p.fate != dead && !m.pending(p) || e.Step == "" && p.fate != dead && !slices.Contains(calling, p) {
			continue
		}
		if n.Input != nil {
			if m.state == Running {
				return errors.New("the input of a step can change only after the pivot, or for its undo")
			}
			p.former = append(slices.Clip(p.former), given{p.input, p.edited})
			p.input, p.edited = n.Input, true
		}
		found, p.attempts, p.lost, p.by, p.next, p.parked = true, 0, 0, nil, time.Time{}, false
		if p.fate == dead {
			p.fate = p.was
		}
	}
	if !found {
		return errOrder
	}
	m.settle()
	return nil
}

// pending reports whether a step, or its undo, is what the saga is at.
func (m *machine) pending(p *progress) bool {
	if m.state == Undoing {
		return p.undoable()
	}
	return p.fate == inFlight && !p.wait
}

// skip goes on without an undo, or without a step behind the decision to commit.
func (m *machine) skip(e journal.Entry) error {
	n, err := noted(e)
	if err != nil {
		return err
	}
	p := m.find(e.Step)
	if p == nil || p.fate != dead && (m.state == Running || !m.pending(p)) {
		return errOrder
	}
	p.fate, p.err = skipped, n.Actor+": "+n.Reason
	m.settle()
	return nil
}

// learn takes the outcome that a person has recorded of a step in flight.
func (m *machine) learn(e journal.Entry) error {
	if _, err := noted(e); err != nil {
		return err
	}
	if p := m.find(e.Step); p == nil || p.fate != inFlight || p.wait {
		return errOrder
	}
	return nil
}

// hurry ends a wait.
func (m *machine) hurry(e journal.Entry) error {
	if _, err := noted(e); err != nil {
		return err
	}
	if e.Step == "" && !m.start.IsZero() && len(m.steps) == 0 {
		m.start = time.Time{}
		return nil
	}
	p := m.find(e.Step)
	if p == nil || p.fate != inFlight || !p.wait {
		return errOrder
	}
	p.over = true
	return nil
}

// resolve closes a dead letter.
func (m *machine) resolve(e journal.Entry) error {
	n, err := noted(e)
	if err != nil {
		return err
	}
	if m.state != DeadLetter {
		return errOrder
	}
	m.state, m.resolved = Resolved, &n
	return nil
}
