package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// execution decides the next action of one running saga. It performs no I/O: next returns
// an action, and note applies the records that follow from its result.
//
// Results are buffered in pending and written with the next record that must be durable. If
// the process dies first, the next owner repeats the same calls and gets the same results.
// These records must be durable before the execution continues:
//   - sent, before a step that cannot be undone or continued without it
//   - decide, before any undo and before any outcome is returned
//   - the end of a wait, and end
type execution struct {
	id      string
	plan    plan
	planner planner // nil while undoing
	m       machine
	all     []step // of the list, by its definition; see undoer
	listed  bool   // all is set

	careful   bool      // each answer is durable before the next call
	scheduled time.Time // due time in the journal; zero if the saga is claimed

	pending []journal.Entry // not durable yet
	since   time.Time       // of the first pending record
	forced  bool            // pending records must be durable before anything else

	reports int       // failed calls of OnEnd
	again   time.Time // when the next one is due
	timed   bool      // its target asks for that time

	trials    map[string]*attempts // by key
	notCalled map[string]bool      // by key: sent here, and not called yet
}

// action is the next thing to do: one of the fields, or rest.
type action struct {
	write  bool      // make pending records durable
	due    time.Time // and make the saga due then
	calls  []*call   // to make
	report bool      // call OnEnd
	wait   time.Time // until then, or until a target recovers
	rest   bool      // no action except write
}

// stale bounds the age of pending records before the next call or wait. During waits longer than
// parked a saga is not kept in memory.
const (
	stale  = 250 * time.Millisecond
	parked = time.Minute
)

// newExecution returns the execution of a saga in the journal. fresh means that no call was made for it.
func newExecution(p plan, head driver.Head, entries []journal.Entry, fresh bool) (*execution, error) {
	id := head.Transaction
	m, err := replay(entries)
	if err != nil {
		return nil, bug("drive saga", id, err)
	}
	c := &execution{id: id, plan: p, m: m, trials: map[string]*attempts{}, notCalled: map[string]bool{}}
	if !head.Claimed {
		c.scheduled = head.Due
	}
	for _, sent := range m.steps {
		c.notCalled[sent.key] = fresh
	}
	if m.state == Running || m.state == Completing {
		c.planner, err = p.planner(id, &c.m)
	}
	return c, err
}

func (c *execution) close() {
	if c.planner != nil {
		c.planner.close()
	}
}

// note is add of records that follow from the state. It panics if the machine rejects them, which is a bug
// of this package: the coordinator reports it, and drives the saga again by its records.
func (c *execution) note(now time.Time, forced bool, entries ...journal.Entry) {
	if err := c.add(now, forced, entries...); err != nil {
		panic(err)
	}
}

// add applies records, and adds them to pending. forced ones must be durable at once. The machine rejects
// an input that JSON cannot read.
func (c *execution) add(now time.Time, forced bool, entries ...journal.Entry) error {
	before := c.m
	if err := c.m.extend(entries); err != nil {
		c.m = before
		return bug("drive saga", c.id, err)
	}
	if len(c.pending) == 0 {
		c.since = now
	}
	c.pending, c.forced = c.appendPending(entries...), c.forced || forced
	for _, e := range entries {
		switch e.Kind {
		case recordSent:
			c.notCalled[e.Step] = true
		case recordDecide:
			c.trials = map[string]*attempts{}
		}
	}
	return nil
}

// appendPending returns pending with more entries, without tried records that they make obsolete.
func (c *execution) appendPending(entries ...journal.Entry) []journal.Entry {
	known := []string{recordTried, recordDone, recordFailed, recordUndone, recordDead}
	outdated := func(old journal.Entry) bool {
		return old.Kind == recordTried && slices.ContainsFunc(entries, func(e journal.Entry) bool {
			return e.Step == old.Step && slices.Contains(known, e.Kind)
		})
	}
	left := c.pending
	if slices.ContainsFunc(left, outdated) {
		left = slices.DeleteFunc(slices.Clone(left), outdated)
	}
	return append(slices.Clip(left), entries...)
}

// flushed marks pending records as durable.
func (c *execution) flushed() { c.pending, c.forced = nil, false }

// next returns the next action.
func (c *execution) next(now time.Time) (action, error) {
	switch {
	case c.m.atEnd && !c.m.over:
		return c.report(now), nil
	case c.m.state.Final():
		return action{write: len(c.pending) > 0, rest: true}, nil
	case c.m.state == Undoing:
		return c.backward(now)
	case now.Before(c.m.start):
		return c.waitForStart(now), nil
	case c.m.late(now):
		return c.abort(now, errLate.Error())
	case c.m.broken():
		return c.abort(now, c.m.failureReason())
	}
	stages, err := c.planner.rest(&c.m)
	aborted := errAborted{}
	switch {
	case errors.As(err, &aborted):
		return c.abort(now, truncated(aborted))
	case err != nil:
		return action{}, err
	case len(stages) > 0 && !c.decided():
		return c.nextStage(now, stages)
	}
	return c.commit(now, len(stages) == 0)
}

// decided reports whether the decision follows from the records, and is not recorded.
func (c *execution) decided() bool {
	p := c.m.pivot()
	return c.m.state == Running && p != nil && p.fate == done
}

// commit records the decision, and the end after the last stage. It returns the next action.
func (c *execution) commit(now time.Time, last bool) (action, error) {
	var entries []journal.Entry
	if c.m.state == Running {
		entries = append(entries, journal.Entry{Kind: recordDecide, Step: decideCommit, Data: []byte("{}")})
	}
	if last {
		entries = append(entries, c.m.ending())
	}
	c.note(now, last, entries...)
	return c.next(now)
}

// abort records the decision, and for each sent step whether it was called and may be done. It returns
// the next action.
func (c *execution) abort(now time.Time, reason string) (action, error) {
	var known, never []journal.Entry
	for _, p := range c.m.steps {
		switch t := c.trials[p.key]; {
		case p.fate != inFlight || p.wait:
		case t != nil && t.err != nil:
			known = append(known, record(recordFailed, p.key, why{Unknown: t.mayBeDone, Error: truncated(t.err)}))
		case c.notCalled[p.key], c.plan.local(&p):
			never = append(never, journal.Entry{Kind: recordNever, Step: p.key})
		}
	}
	entries := slices.Concat(known, []journal.Entry{record(recordDecide, decideAbort, why{Error: reason})}, never)
	c.note(now, true, entries...)
	return c.next(now)
}

// failureReason returns why a saga with a step that was given up is aborted.
func (m *machine) failureReason() string {
	for _, p := range m.steps {
		if p.fate == refused || p.fate == unknown {
			return p.key + ": " + p.err
		}
	}
	return ""
}

// nextStage continues with the first stage.
func (c *execution) nextStage(now time.Time, stages []stage) (action, error) {
	first := stages[0]
	if first.steps[0].sleep {
		return c.sleep(now, first)
	}
	if sents := c.sentRecords(stages); len(sents) > 0 {
		if err := c.add(now, (c.m.state == Running || c.plan.body != nil) && first.steps[0].local == nil, sents...); err != nil {
			return action{}, err
		}
	}
	var all []*call
	for i := range first.steps {
		if s := &first.steps[i]; !c.m.settled(s.key) {
			all = append(all, c.call(s, c.m.find(s.key)))
		}
	}
	return c.proceed(now, all), nil
}

// sentRecords returns the records that must precede the calls of the first stage. Before the pivot they
// include all steps up to it or to a wait, as many as fit, so that later steps need no append.
func (c *execution) sentRecords(stages []stage) (sents []journal.Entry) {
	if !slices.ContainsFunc(stages[0].steps, func(s step) bool { return c.m.find(s.key) == nil }) {
		return nil // all were sent
	}
	for i, st := range stages {
		s := st.steps[0]
		if s.sleep || i > 0 && (s.pivot || c.m.state != Running || len(c.pending)+len(sents)+len(st.steps) >= driver.MaxRecords) {
			break
		}
		for _, s := range st.steps {
			if c.m.find(s.key) == nil {
				sents = append(sents, s.sent(st.n))
			}
		}
		if s.pivot {
			break
		}
	}
	return sents
}

func (s step) sent(stage int) journal.Entry {
	data := sending{Stage: stage, At: s.at, Undo: s.undo, Pivot: s.pivot, Input: s.input}
	if s.branch != "" {
		data.Of = s.branch
	}
	return record(recordSent, s.key, data)
}

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

// undoer returns the step that undoes p, or nil: in a list the list's own step, whose options its calls
// use, otherwise the known step with the undo of that name.
func (c *execution) undoer(p *progress) *step {
	if !c.listed {
		c.all, c.listed = c.plan.listed(c.m.input), true
	}
	for i := range c.all {
		if s := &c.all[i]; s.key == p.key && s.undo == p.undo && s.back != nil {
			return s
		}
	}
	return c.plan.undoOf(p.undo)
}

// listed returns the steps of a saga's list, or nil if the list fails now.
func (p plan) listed(input json.RawMessage) (all []step) {
	defer func() { _ = recover() }() // then there are none
	stages, err := p.stages(input)
	if err != nil {
		return nil
	}
	for _, st := range stages {
		all = append(all, st.steps...)
	}
	return all
}

// report returns the action that calls OnEnd once the end is durable.
func (c *execution) report(now time.Time) action {
	switch {
	case c.plan.ended == nil:
		c.note(now, true, journal.Entry{Kind: recordEnd})
		return action{write: true, rest: true}
	case len(c.pending) > 0:
		return action{write: true}
	case now.Before(c.again):
		return action{wait: c.again}
	}
	return action{report: true}
}

// endTarget returns the target of OnEnd.
func (c *execution) endTarget() (target string) {
	target = c.plan.name + " ended"
	if c.plan.endedAt == nil {
		return target
	}
	defer func() { _ = recover() }() // then it is the default
	return c.plan.endedAt(c.m.input)
}

// ending returns the last record, or the one before it if OnEnd is to be called first.
func (m *machine) ending() journal.Entry {
	if m.notify && !m.atEnd {
		return journal.Entry{Kind: recordFinished}
	}
	return journal.Entry{Kind: recordEnd}
}
