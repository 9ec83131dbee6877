package saga

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
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

// sleep waits for the end of a wait, which is recorded before it begins.
func (c *execution) sleep(now time.Time, st stage) (action, error) {
	s := &st.steps[0]
	p := c.m.find(s.key)
	if p == nil {
		var until time.Time
		if s.wait > 0 {
			until = now.Add(s.wait)
		}
		c.note(now, true, record(recordSent, s.key, sending{Stage: st.n, Until: millis(until), For: s.signal}))
		p = c.m.find(s.key)
	}
	until := p.until
	if p.signal && until.IsZero() {
		if until = now.Add(forever); c.scheduled.After(now) {
			until = c.scheduled
		}
	}
	output, received := c.m.signals[s.key]
	ended := journal.Entry{Kind: recordDone, Step: s.key, Data: output}
	switch {
	case received && p.signal:
	case now.Before(until) && !p.over:
		return c.pause(now, until, []*progress{p}), nil
	case p.signal && s.absent != nil:
		ended.Data = s.absent
	case p.signal && c.m.state == Running:
		ended = record(recordFailed, s.key, why{Error: fmt.Sprintf("no signal %q came in time", s.key)})
	default: // also if an operator has ended a wait after the pivot that has no end
		ended.Data = []byte("null")
	}
	c.note(now, true, ended)
	return c.next(now)
}
