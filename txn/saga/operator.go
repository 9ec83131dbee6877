package saga

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator changes sagas by hand. It needs no definitions, and owns no shard: the owner of the
// shard finds its records. It repeats an append after a conflict. Each change makes the saga due
// at once. It is safe for concurrent use.
//
// A change that the saga's state does not allow is a [*StateError], and an id without a saga an
// [ErrNone].
type Operator struct{ journal *journal.Journal }

// NewOperator returns an operator on a journal, and does not close it.
func NewOperator(j *journal.Journal) *Operator { return &Operator{j} }

// Operator returns an operator on the engine's journal.
func (e *Engine) Operator() *Operator { return NewOperator(e.coordinator.Journal()) }

// List yields the sagas that match the filter, in the order of their ids; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry repeats an undo that failed for good, or all of them if step is empty; the saga is
// UNDOING again. A step or undo that waits for its next attempt is called at once, and its
// attempts start at one. If no undo has failed for good, an empty step means all waiting ones.
func (o *Operator) Retry(ctx context.Context, id, step string, by By) error {
	return o.act(ctx, "retry", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordRetry, step, by)}, nil
	})
}

// Edit is [Operator.Retry] with another input, JSON, from now on. It applies to undos, and to
// steps after the pivot. A call with the former input may have completed, or may still complete.
// If the target compares inputs, as a barrier does (branch.ErrOtherInput), the step is then done
// with that input. Otherwise this is detected only if the process that made the call is alive.
// Such a case is reported by the hook Crossed, by [Outcome.Crossed] and by the step's Err in
// [Replay], unless the saga had ended before.
func (o *Operator) Edit(ctx context.Context, id, step string, input json.RawMessage, by By) error {
	if !json.Valid(input) || len(input) > driver.MaxPayload/2 || step == "" {
		return bug("edit", id, fmt.Errorf("the input is not JSON, has more than %d bytes, or is for no step", driver.MaxPayload/2))
	}
	return o.act(ctx, "edit", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordRetry, step, note{By: by, Input: input})}, nil
	})
}

// Skip continues without an undo, whether it has failed for good or is still retried: use it if
// the step's effect was removed by hand. After the pivot it continues without the step, and the
// saga succeeds without it. If nothing else is left to undo, the saga has ended when Skip
// returns.
func (o *Operator) Skip(ctx context.Context, id, step string, by By) error {
	return o.act(ctx, "skip", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordSkip, step, by)}, nil
	})
}

// Resolve closes a dead letter that was repaired by hand. The saga is RESOLVED, permanently,
// when Resolve returns.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, "", by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordResolved, "", by)}, nil
	})
}

// Now skips the current wait: for the start time, a Sleep, a Signal (as if its time were over),
// or the next attempt.
func (o *Operator) Now(ctx context.Context, id string, by By) error {
	for ended := map[string]bool{}; ; {
		var entries []journal.Entry
		err := o.act(ctx, "end the wait of", id, "", by, func(m *machine) ([]journal.Entry, error) {
			if entries = m.endWaits(by, ended); len(entries)+len(ended) == 0 {
				return nil, errors.New("it waits for nothing")
			}
			return entries, nil
		})
		if err != nil || len(entries) < driver.MaxRecords { // a group can have more steps
			return err
		}
		for _, e := range entries {
			ended[e.Step] = true
		}
	}
}

// endWaits returns the records that end the waits of one append, except those of some steps.
func (m *machine) endWaits(by By, except map[string]bool) (entries []journal.Entry) {
	if !m.start.IsZero() && len(m.steps) == 0 {
		return []journal.Entry{record(recordNow, "", by)}
	}
	for _, p := range m.calling() {
		switch {
		case except[p.key] || len(entries) == driver.MaxRecords:
		case p.wait:
			entries = append(entries, record(recordNow, p.key, by))
		default:
			entries = append(entries, record(recordRetry, p.key, by))
		}
	}
	return entries
}

// Abort aborts a saga that has not called its pivot. Completed steps, and calls under way, are
// undone. The saga is UNDOING when Abort returns, or has ended if nothing has to be undone. The
// actor and the reason become the saga's reason.
func (o *Operator) Abort(ctx context.Context, id string, by By) error {
	return o.act(ctx, "abort", id, "", by, func(m *machine) ([]journal.Entry, error) {
		if p := m.pivot(); (m.state == Running || m.before == Running) && p != nil && p.fate != refused {
			return nil, fmt.Errorf("its pivot %q may have happened: the saga continues until its outcome is known", p.key)
		}
		return []journal.Entry{record(recordDecide, decideAbort, why{Error: truncated(fmt.Errorf("%s: %s", by.Actor, by.Reason))})}, nil
	})
}

// Done records that a step was done whose call was not answered. Output is JSON of the step's
// output type; nil means null. It is mainly for a pivot whose target is gone, so that only an
// operator can find out its outcome. The steps before it must have been done.
func (o *Operator) Done(ctx context.Context, id, step string, output json.RawMessage, by By) error {
	if output == nil {
		output = json.RawMessage("null")
	}
	if !json.Valid(output) || len(output) > driver.MaxPayload {
		return bug("settle", id, fmt.Errorf("the output is not JSON, or has more than %d bytes", driver.MaxPayload))
	}
	return o.settle(ctx, id, step, by, journal.Entry{Kind: recordDone, Step: step, Data: output})
}

// NotDone records that a step had no effect whose call was not answered, and that no call of it
// can still arrive. The saga is then undone. It applies up to the pivot; the steps before it must
// have been done.
func (o *Operator) NotDone(ctx context.Context, id, step string, by By) error {
	return o.settle(ctx, id, step, by, record(recordFailed, step, why{Error: truncated(fmt.Errorf("%s: %s", by.Actor, by.Reason))}))
}

func (o *Operator) settle(ctx context.Context, id, step string, by By, became journal.Entry) error {
	return o.act(ctx, "settle", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordSettle, step, by), became}, nil
	})
}

// act appends the records of an operator that follow from the saga's state.
func (o *Operator) act(ctx context.Context, op, id, step string, by By, follows func(*machine) ([]journal.Entry, error)) error {
	if err := by.Check(op, id); err != nil {
		return err
	}
	return o.append(ctx, op, id, step, func(m *machine) ([]journal.Entry, error) {
		if step != "" && m.find(step) == nil {
			return nil, m.notBegun(step)
		}
		return follows(m)
	})
}

// append appends the records that follow from the saga's state, and its end if nothing is left to do.
func (o *Operator) append(ctx context.Context, op, id, step string, follows func(*machine) ([]journal.Entry, error)) error {
	return records.Change(ctx, o.journal, op, id, step, func(t coordinator.Transaction[machine]) ([]journal.Entry, error) {
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

// notBegun returns the error about a step that has no records.
func (m *machine) notBegun(step string) error {
	begun := make([]string, len(m.steps))
	for i, p := range m.steps {
		begun[i] = strconv.Quote(p.key)
	}
	return fmt.Errorf("no step %q has begun; those that have are: %s", step, cmp.Or(strings.Join(begun, ", "), "none"))
}

// Records of operators.

func noted(e journal.Entry) (n note, err error) {
	if err = json.Unmarshal(e.Data, &n); err == nil && (n.Actor == "" || n.Reason == "") {
		err = errors.New("the actor and the reason are missing")
	}
	return n, err
}

// retry makes waiting or failed steps and undos due at once, one or all. Their attempts start at zero. The
// input can change, except that of a step that may have been called and may still be undone.
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
			p.former = append(slices.Clip(p.former), formerInput{p.input, p.edited})
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

// pending reports whether a step or its undo is next.
func (m *machine) pending(p *progress) bool {
	if m.state == Undoing {
		return p.undoable()
	}
	return p.fate == inFlight && !p.wait
}

// skip gives up an undo, or a step after the decision to commit.
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

// applyOutcome applies the outcome that an operator recorded for a step in flight.
func (m *machine) applyOutcome(e journal.Entry) error {
	if _, err := noted(e); err != nil {
		return err
	}
	if p := m.find(e.Step); p == nil || p.fate != inFlight || p.wait {
		return errOrder
	}
	return nil
}

// endWait ends a wait.
func (m *machine) endWait(e journal.Entry) error {
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

// An operator's edit can cross a call with the former input. Both have one key, so the target
// then has the effect of that call. This cannot be prevented. It is detected:
//
//   - by the process that made the call, when it returns;
//   - without that process, by a target that compares inputs, as a barrier does: it answers
//     the call with the new input by branch.ErrOtherInput. The call is then made with the
//     former inputs, until the target repeats its first answer.

// lateCall is a successful call that the journal does not have yet.
type lateCall struct {
	input []byte
	undo  bool
}

// reportCrossings finds edits that crossed calls whose answers the journal rejected, and reports them. It
// has a bound of its own, because serving may have ended.
func (d *drive) reportCrossings() {
	for key, late := range d.late {
		ctx, end := context.WithTimeout(context.WithoutCancel(d.Context()), 10*time.Second)
		d.reportCrossing(ctx, key, late)
		end()
	}
}

func (d *drive) reportCrossing(ctx context.Context, key string, late lateCall) {
	j := d.engine.coordinator.Journal()
	t, err := records.Read(ctx, j, "report", d.ID())
	if err != nil {
		return // the crossing cannot be detected
	}
	p := t.State.find(key)
	if p == nil || !p.edited || bytes.Equal(p.input, late.input) {
		return
	}
	w := why{Error: fmt.Sprintf("a call with the input before its edit, %s, was done: the target may have its effect", coordinator.Truncate(string(late.input), 200))}
	err = NewOperator(j).append(ctx, "report", d.ID(), key, func(m *machine) ([]journal.Entry, error) {
		if m.over {
			return nil, nil // no record can follow an end
		}
		return []journal.Entry{record(recordCrossed, key, w)}, nil
	})
	coordinator.Emit(d.engine.options.Hooks.Crossed, observe.SagaCrossed{Saga: d.ID(), Type: d.plan.key(), Step: key, Undo: late.undo,
		Before: coordinator.Truncate(string(late.input), coordinator.MaxFailing), After: coordinator.Truncate(string(p.input), coordinator.MaxFailing), Err: err})
}

// callWithFormerInput repeats a call with each former input, the last one first, after the target answered
// that it has applied another input. It returns err if the target has applied none of them.
func (c *call) callWithFormerInput(ctx context.Context, m *machine, err error) ([]byte, error) {
	about := From(ctx)
	for i, g := range slices.Backward(c.p.former) {
		about.Edited = g.edited
		output, answer := c.step.act(with(ctx, about), m.inputOf(&progress{input: g.input}))
		if errors.Is(answer, branch.ErrOtherInput) {
			continue
		}
		if answer == nil {
			c.former = i + 1
			return output, nil
		}
		return nil, fmt.Errorf("the target applied a call with the input before the edit: %w", answer)
	}
	return nil, err
}

// revert records that a step was done with an input before its edit.
func (d *drive) revert(c *call) {
	before, after := d.m.inputOf(&progress{input: c.p.former[c.former-1].input}), d.m.inputOf(&c.p)
	w := why{Former: c.former, Error: fmt.Sprintf("the edit of its input came too late: it was done with the input before, %s, and not with %s",
		coordinator.Truncate(string(before), 200), coordinator.Truncate(string(after), 200))}
	d.reverted = append(d.reverted, observe.SagaCrossed{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Final: true,
		Before: coordinator.Truncate(string(before), coordinator.MaxFailing), After: coordinator.Truncate(string(after), coordinator.MaxFailing)})
	d.note(d.Now(), false, record(recordCrossed, c.p.key, w))
}

// applyCrossed applies that a call with a former input was done. If the record has the number of the
// input, that becomes the step's input.
func (m *machine) applyCrossed(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	p := m.find(e.Step)
	if p == nil || !p.edited || w.Former < 0 || w.Former > len(p.former) {
		return errOrder
	}
	if w.Former > 0 {
		p.input, p.edited = p.former[w.Former-1].input, p.former[w.Former-1].edited
	}
	p.crossed = w.Error
	return nil
}
