package saga

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
	w := why{Error: fmt.Sprintf("a call with the input before its edit, %s, was done: the target may have its effect", truncate(string(late.input), 200))}
	err = NewOperator(j).append(ctx, "report", d.ID(), key, func(m *machine) ([]journal.Entry, error) {
		if m.over {
			return nil, nil // no record can follow an end
		}
		return []journal.Entry{record(recordCrossed, key, w)}, nil
	})
	if f := d.engine.options.Hooks.Crossed; f != nil {
		f(observe.SagaCrossed{Saga: d.ID(), Type: d.plan.key(), Step: key, Undo: late.undo, Before: truncate(string(late.input), longestTried),
			After: truncate(string(p.input), longestTried), Err: err})
	}
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
func (d *drive) revert(c *call) error {
	before, after := d.m.inputOf(&progress{input: c.p.former[c.former-1].input}), d.m.inputOf(&c.p)
	w := why{Former: c.former, Error: fmt.Sprintf("the edit of its input came too late: it was done with the input before, %s, and not with %s",
		truncate(string(before), 200), truncate(string(after), 200))}
	d.reverted = append(d.reverted, observe.SagaCrossed{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Final: true,
		Before: truncate(string(before), longestTried), After: truncate(string(after), longestTried)})
	return d.note(d.Now(), false, record(recordCrossed, c.p.key, w))
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
