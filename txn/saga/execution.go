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
// These records must be durable before execution goes on:
//   - sent, before a step that cannot be undone or continued without it
//   - decide, before any undo and before any outcome is returned
//   - the end of a wait, and end
type execution struct {
	id      string
	plan    plan
	planner planner // nil once it is undone
	m       machine
	all     []step // the steps of its definition's list; see undoer
	listed  bool   // all is set

	careful   bool      // each answer is durable before the next call
	scheduled time.Time // when it is due by what the journal says; zero if it is claimed

	pending []journal.Entry // not durable yet
	since   time.Time       // of the first of them
	forced  bool            // they have to be before anything else

	reports int       // calls that reported the end, and failed
	again   time.Time // when the next one is made

	trials   map[string]*trial // of what was called here
	uncalled map[string]bool   // what was sent here, and not called
}

// An action is what to do next: one of its fields, or to rest.
type action struct {
	write  bool      // make what is pending durable
	due    time.Time // and be due then
	calls  []*call   // make them
	report bool      // call who wants to know of the end
	wait   time.Time // for that time, or until a target heals
	rest   bool      // there is nothing to do, but to write
}

// stale is how old what is pending may become before the next call or wait; longer
// waits than parked are spent outside of memory.
const (
	stale  = 250 * time.Millisecond
	parked = time.Minute
)

// newExecution is that of a saga as it stands in the journal. If it is fresh, nobody has
// called anything of it.
func newExecution(p plan, head driver.Head, entries []journal.Entry, fresh bool) (*execution, error) {
	id := head.Transaction
	m, err := replay(entries)
	if err != nil {
		return nil, bug("drive saga", id, err)
	}
	c := &execution{id: id, plan: p, m: m, trials: map[string]*trial{}, uncalled: map[string]bool{}}
	if !head.Claimed {
		c.scheduled = head.Due
	}
	for _, sent := range m.steps {
		c.uncalled[sent.key] = fresh
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

// note takes records that follow; forced ones have to be durable at once.
func (c *execution) note(now time.Time, forced bool, entries ...journal.Entry) error {
	m, err := c.m.with(entries...)
	if err != nil {
		return bug("drive saga", c.id, err)
	}
	if len(c.pending) == 0 {
		c.since = now
	}
	c.m, c.pending, c.forced = m, c.behind(entries...), c.forced || forced
	for _, e := range entries {
		switch e.Kind {
		case recordSent:
			c.uncalled[e.Step] = true
		case recordDecide:
			c.trials = map[string]*trial{}
		}
	}
	return nil
}

// behind is what is pending with more entries behind it, and without how often a step was
// tried of which more is known by now.
func (c *execution) behind(entries ...journal.Entry) []journal.Entry {
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

// flushed notes that what was pending is durable.
func (c *execution) flushed() { c.pending, c.forced = nil, false }

// next is what to do.
func (c *execution) next(now time.Time) (action, error) {
	for {
		switch {
		case c.m.atEnd && !c.m.over:
			return c.report(now)
		case c.m.state.Final():
			return action{write: len(c.pending) > 0, rest: true}, nil
		case c.m.state == Undoing:
			return c.backward(now)
		}
		if m, follows, err := c.forward(now); err != nil || !follows {
			return m, err
		}
	}
}

// forward is next of a saga that is not undone; follows reports that it is another one
// now, of which what is next can be asked.
func (c *execution) forward(now time.Time) (m action, follows bool, err error) {
	switch {
	case now.Before(c.m.start):
		m, err := c.putOff(now)
		return m, false, err
	case c.m.late(now):
		return m, true, c.abort(now, errLate.Error())
	case c.m.broken():
		return m, true, c.abort(now, c.m.breach())
	}
	stages, err := c.planner.rest(&c.m)
	aborted := errAborted{}
	switch {
	case errors.As(err, &aborted):
		return m, true, c.abort(now, said(aborted))
	case err != nil:
		return m, false, err
	case len(stages) > 0 && !c.decided():
		return c.nextStage(now, stages)
	}
	return m, true, c.commit(now, len(stages) == 0)
}

// decided reports whether nothing is left to decide, and no record says so.
func (c *execution) decided() bool {
	p := c.m.pivot()
	return c.m.state == Running && p != nil && p.fate == done
}

// commit notes the decision, and the end behind the last stage.
func (c *execution) commit(now time.Time, last bool) error {
	var entries []journal.Entry
	if c.m.state == Running {
		entries = append(entries, journal.Entry{Kind: recordDecide, Step: decideCommit, Data: []byte("{}")})
	}
	if last {
		entries = append(entries, c.m.ending())
	}
	return c.note(now, last, entries...)
}

// abort notes the decision, and with it what is known of each step that was sent:
// whether it was called, and whether it may have happened.
func (c *execution) abort(now time.Time, reason string) error {
	var known, never []journal.Entry
	for _, p := range c.m.steps {
		switch t := c.trials[p.key]; {
		case p.fate != inFlight || p.wait:
		case t != nil && t.err != nil:
			known = append(known, record(recordFailed, p.key, why{Unknown: t.maybe, Error: said(t.err)}))
		case c.uncalled[p.key], c.plan.local(&p):
			never = append(never, journal.Entry{Kind: recordNever, Step: p.key})
		}
	}
	entries := slices.Concat(known, []journal.Entry{record(recordDecide, decideAbort, why{Error: reason})}, never)
	return c.note(now, true, entries...)
}

// breach is why a saga with a step that was given up is aborted.
func (m *machine) breach() string {
	for _, p := range m.steps {
		if p.fate == refused || p.fate == unknown {
			return p.key + ": " + p.err
		}
	}
	return ""
}

// nextStage goes on with the first stage; follows reports that the next one can be
// looked at.
func (c *execution) nextStage(now time.Time, stages []stage) (m action, follows bool, err error) {
	first := stages[0]
	if first.steps[0].sleep {
		return c.sleep(now, first)
	}
	if sents := c.sents(stages); len(sents) > 0 {
		if err := c.note(now, (c.m.state == Running || c.plan.body != nil) && first.steps[0].local == nil, sents...); err != nil {
			return action{}, false, err
		}
	}
	var all []*call
	for i := range first.steps {
		if s := &first.steps[i]; !c.m.settled(s.key) {
			all = append(all, c.call(s, c.m.find(s.key)))
		}
	}
	m, err = c.proceed(now, all)
	return m, false, err
}

// sents is the records without which the first stage may not be called. Before the
// pivot they are those of all steps before it, as many as fit, so that no later step
// needs an append of its own; a wait parts them.
func (c *execution) sents(stages []stage) (sents []journal.Entry) {
	if c.m.all(stages[0]) {
		return nil
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

// all reports whether all steps of a stage were sent.
func (m *machine) all(st stage) bool {
	return !slices.ContainsFunc(st.steps, func(s step) bool { return m.find(s.key) == nil })
}

func (s step) sent(stage int) journal.Entry {
	data := sending{Stage: stage, At: s.at, Undo: s.undo, Pivot: s.pivot, Input: s.input}
	if s.branch != "" {
		data.Of = s.branch
	}
	return record(recordSent, s.key, data)
}

// sleep waits for the end of a wait, which is durable before it begins.
func (c *execution) sleep(now time.Time, st stage) (m action, follows bool, err error) {
	s := &st.steps[0]
	p := c.m.find(s.key)
	if p == nil {
		var until time.Time
		if s.wait > 0 {
			until = now.Add(s.wait)
		}
		sent := record(recordSent, s.key, sending{Stage: st.n, Until: millis(until), For: s.signal})
		if err := c.note(now, true, sent); err != nil {
			return action{}, false, err
		}
		p = c.m.find(s.key)
	}
	if value, is := c.m.signals[s.key]; is && p.signal {
		return action{}, true, c.note(now, true, journal.Entry{Kind: recordDone, Step: s.key, Data: value})
	}
	if p.signal && p.until.IsZero() && !p.over {
		until := now.Add(forever)
		if c.scheduled.After(now) {
			until = c.scheduled
		}
		m, err := c.pause(now, until, []*progress{p})
		return m, false, err
	}
	if now.Before(p.until) && !p.over {
		m, err := c.pause(now, p.until, []*progress{p})
		return m, false, err
	}
	if p.signal && s.absent == nil {
		if c.m.state != Running { // an operator has ended a wait that has no end
			return action{}, true, c.note(now, true, journal.Entry{Kind: recordDone, Step: s.key, Data: []byte("null")})
		}
		return action{}, true, c.note(now, true, record(recordFailed, s.key, why{Error: fmt.Sprintf("no signal %q came in time", s.key)}))
	}
	output := s.absent
	if !p.signal {
		output = []byte("null")
	}
	return action{}, true, c.note(now, true, journal.Entry{Kind: recordDone, Step: s.key, Data: output})
}
