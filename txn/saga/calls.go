package saga

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A call is a call of a step or undo to make.
type call struct {
	step  *step // has the function
	p     progress
	phase phase
	trial *attempts

	former int // number of the former input that the target has applied, from 1; 0 means the present one
}

// call returns the call of a step.
func (c *execution) call(s *step, p *progress) *call {
	t := c.trials[p.key]
	if t == nil {
		// Without its record, a step that commits with its record was not done.
		maybe := !c.notCalled[p.key] && (s.local == nil || c.m.state == Undoing)
		t = &attempts{phase: c.m.phase(p), attempts: p.attempts, by: maps.Clone(p.by), calls: p.calls, mayBeDone: maybe, next: p.next, target: s.target}
		c.trials[p.key] = t
	}
	return &call{step: s, p: *p, phase: t.phase, trial: t}
}

// backward returns the calls of the undos that are next, or ends the saga.
func (c *execution) backward(now time.Time) (action, error) {
	undoing := c.m.undoing()
	if len(undoing) == 0 {
		c.note(now, true, c.m.ending())
		return action{write: true, rest: !c.m.notify}, nil
	}
	var all []*call
	var missing error
	for _, p := range undoing {
		s := c.undoer(p)
		if s == nil {
			missing = &MismatchError{ID: c.id, Step: p.key, Problem: fmt.Sprintf(
				"the definition of %[2]q has no undo %[1]q for it: add the undo", p.undo, c.plan.name)}
			continue
		}
		all = append(all, c.call(s, p))
	}
	if len(all) == 0 {
		return action{write: len(c.pending) > 0}, missing
	}
	return c.proceed(now, all), nil
}

// proceed returns the calls that are due, or waits for the first one.
func (c *execution) proceed(now time.Time, all []*call) action {
	var ready []*call
	var waiting []*progress
	var soonest time.Time
	for _, each := range all {
		if next := each.trial.next; !now.Before(next) {
			ready = append(ready, each)
		} else if waiting = append(waiting, c.m.find(each.p.key)); soonest.IsZero() || next.Before(soonest) {
			soonest = next
		}
	}
	switch {
	case len(ready) == 0:
		return c.pause(now, soonest, waiting)
	case c.forced || len(c.pending) > 0 && (c.careful || now.Sub(c.since) >= stale), ready[0].local() && len(c.pending) >= driver.MaxRecords:
		return action{write: true}
	}
	return action{calls: ready}
}

// pause waits until a time, at most until the saga's deadline.
func (c *execution) pause(now, until time.Time, waiting []*progress) action {
	if c.m.abortable() && !c.m.deadline.IsZero() && c.m.deadline.Before(until) {
		until = c.m.deadline
	}
	wait := until.Sub(now)
	if wait > parked {
		return c.park(now, until, waiting)
	}
	if c.forced || len(c.pending) > 0 && wait >= stale {
		return action{write: true}
	}
	return action{wait: until}
}

// park leaves the saga until its due time, and records what the next turn must know.
func (c *execution) park(now, until time.Time, waiting []*progress) action {
	var entries []journal.Entry
	for _, p := range waiting {
		if t := c.trials[p.key]; t != nil && t.err != nil {
			entries = append(entries, t.record(p.key, true))
		}
	}
	if c.m.state == Running {
		for _, p := range c.m.steps {
			if p.fate == inFlight && !p.wait && c.notCalled[p.key] {
				entries = append(entries, journal.Entry{Kind: recordNever, Step: p.key})
			}
		}
	}
	if len(entries)+len(c.pending) == 0 && !c.scheduled.Equal(until.Truncate(time.Millisecond)) {
		p := waiting[0]
		w := why{Error: p.err, Attempts: p.attempts, By: p.by, Calls: p.calls, Next: until.UnixMilli(), Parked: true}
		entries = []journal.Entry{record(recordTried, p.key, w)}
	}
	c.note(now, false, entries...)
	return action{write: len(c.pending) > 0, due: until, rest: true}
}

// applyResult applies the result of a call, and returns what to do next.
func (c *execution) applyResult(now time.Time, each *call, output []byte, err error, random float64) verdict {
	t, key := each.trial, each.p.key
	switch {
	case err != nil:
	case each.local(): // runLocal applied it
		return again
	case t.phase == inUndo:
		c.note(now, false, journal.Entry{Kind: recordUndone, Step: key})
		return again
	default:
		c.note(now, false, journal.Entry{Kind: recordDone, Step: key, Data: output})
		return again
	}
	class, after := branch.ClassOf(err)
	if each.local() && class == branch.ClassUnknown {
		class = branch.ClassRetry // its transaction was not committed
	}
	policy, attempts := t.failed(each.step, class)
	t.timed = t.inProgress || after > 0
	v := t.judge(policy, attempts, class)
	t.mayBeDone = t.mayBeDone && !each.local()
	t.err, t.next = err, now.Add(coordinator.Delay(policy.First, policy.Max, class, after, attempts, random))
	switch {
	case v == markDead:
		c.note(now, false, record(recordDead, key, why{Error: truncated(err), Attempts: t.attempts}))
	case v != again:
		c.note(now, false, record(recordFailed, key, why{Unknown: v == perhapsNot, Error: truncated(err), Attempts: t.attempts}))
	case t.shouldRecord(now, c.m.takeOvers > 0):
		t.noted = now
		c.note(now, false, t.record(key, false))
	}
	return v
}

// shouldRecord reports whether to record a failed call: the first, second, fourth and so on, one an hour,
// and one that ends the count of take-overs. A long wait records it anyway.
func (t *attempts) shouldRecord(now time.Time, takenOver bool) bool {
	if takenOver {
		return true
	}
	if t.inProgress || t.next.Sub(now) > parked {
		return false
	}
	return t.attempts&(t.attempts-1) == 0 || now.Sub(t.noted) >= time.Hour
}

// record returns the record of the failed attempts and the last error.
func (t *attempts) record(key string, leave bool) journal.Entry {
	w := why{Attempts: t.attempts, By: t.by, Calls: t.calls, Next: t.next.UnixMilli(), Parked: leave}
	if t.err != nil {
		w.Error = coordinator.Truncate(t.err.Error(), coordinator.MaxFailing)
	}
	return record(recordTried, key, w)
}

// retryNow makes waiting calls due, and that of OnEnd, unless their target named a time.
func (c *execution) retryNow() {
	if !c.timed {
		c.again = time.Time{}
	}
	for _, t := range c.trials {
		if !t.timed {
			t.next = time.Time{}
		}
	}
}

// Policy sets how failed calls are repeated; the zero value works. Attempts does not bound the
// pivot while its outcome is unknown, nor the steps after it.
type Policy struct {
	// First bounds the first wait, and the bound doubles with each wait. A wait is random
	// below its bound, and at least a millisecond. 0 means 100 milliseconds.
	First time.Duration
	// Max bounds every wait; 0 means a minute. A saga that waits for longer than a minute
	// is not kept in memory.
	Max time.Duration
	// Attempts is the number of calls of a step up to the pivot before the saga is aborted;
	// 0 means 10. An [InProgress] answer does not count. A new owner of the saga counts from
	// the number in the journal: see the package comment.
	Attempts int
	// Undos is the number of calls of an undo before it is dead; 0 means 20.
	Undos int
}

func (p Policy) resolve() Policy {
	p.First = cmp.Or(max(p.First, 0), 100*time.Millisecond)
	p.Max = cmp.Or(max(p.Max, 0), time.Minute)
	p.Attempts = cmp.Or(max(p.Attempts, 0), 10)
	p.Undos = cmp.Or(max(p.Undos, 0), 20)
	return p
}

// verdict is the consequence of a failed call.
type verdict int

const (
	again      verdict = iota
	notDone            // given up; it is not done
	perhapsNot         // given up; it may be done
	markDead           // the undo is given up
)

// attempts are the calls of one step or its undo.
type attempts struct {
	phase      phase
	attempts   int            // failed ones
	by         map[string]int // failed ones by class, for classes with a policy
	mayBeDone  bool           // an earlier call may have been applied
	err        error          // of the last call
	inProgress bool           // the target was processing the last call
	timed      bool           // the target asks for the time of the next call
	next       time.Time      // not before
	noted      time.Time      // when a failed call was last recorded
	calls      int
	target     string
}

// failed counts a call, and returns its policy and the number of failures under that policy.
func (t *attempts) failed(s *step, c branch.Class) (Policy, int) {
	if t.inProgress = c == branch.ClassInProgress; t.inProgress {
		return s.policy, t.attempts
	}
	t.attempts++
	if p, own := s.by[c]; own {
		if t.by == nil {
			t.by = map[string]int{}
		}
		t.by[c.String()]++
		return p, t.by[c.String()]
	}
	return s.policy, t.attempts
}

// judge returns the verdict of a failed call. A refusal after a call that may have been applied does not
// show that nothing was done, so the step is undone. For the pivot the target's answer is final.
func (t *attempts) judge(p Policy, attempts int, c branch.Class) verdict {
	was := t.mayBeDone
	t.mayBeDone = t.mayBeDone || c == branch.ClassUnknown || c == branch.ClassInProgress
	spent := c != branch.ClassInProgress && attempts >= p.Attempts
	switch t.phase {
	case inUndo:
		if c == branch.ClassFail || c != branch.ClassInProgress && attempts >= p.Undos {
			return markDead
		}
	case atPivot:
		if c == branch.ClassFail || spent && !t.mayBeDone {
			return notDone
		}
	case beforePivot:
		switch {
		case c == branch.ClassFail && !was, spent && !t.mayBeDone:
			return notDone
		case c == branch.ClassFail, spent:
			return perhapsNot
		}
	}
	return again
}

// A Call describes one call of an action or undo. Its Transaction is the saga's id. Its Branch is
// the step's key; for a step with an index, Branch is the name and Step the index. Its Operation
// is branch.Do or branch.Undo.
type Call struct {
	branch.Call
	Type    string          // the definition's name
	Outputs Outputs         // of completed steps
	Input   json.RawMessage // the saga's
	Edited  bool            // an operator has changed the step's input
}

type callKey struct{}

func with(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// From returns the call that ctx belongs to, or the zero Call outside of actions and undos.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	c.Call = branch.From(ctx)
	return c
}

// Heartbeat restarts the timeout of the action or undo that ctx belongs to, up to
// [Action.MaxTime] in total. It returns false if the time is over or ctx belongs to no call. It
// does not block.
func Heartbeat(ctx context.Context) bool { return coordinator.Heartbeat(ctx) }

// All returns every output as JSON, by the step's key.
func (o Outputs) All() map[string]json.RawMessage {
	all := maps.Clone(o.steps)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	return all
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
