package saga

import (
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A course is a saga on its way. It is pure: it says what to do next, and takes what
// came of it.
//
// What follows from what happened is noted: the machine goes by it at once, and it
// becomes durable together with the next record that must be durable before anything
// else is done. Until then whoever takes over finds it out again, by the same calls.
// What must be durable first: that a step may happen whose effect would else not be
// undone or not be gone on from, the decision to abort, when a wait ends, and the end.
type course struct {
	id      string
	plan    plan
	planner planner // nil once it is undone
	m       machine

	scheduled time.Time // when it is due by what the journal says; zero if it is claimed

	pending []journal.Entry // not durable yet
	since   time.Time       // of the first of them
	forced  bool            // they have to be before anything else

	trials map[string]*trial // of what was called here
	idle   map[string]bool   // what was sent here, and not called
}

// A move is what to do next: one of its fields, or to rest.
type move struct {
	write bool      // make what is pending durable
	due   time.Time // and be due then
	calls []*call   // make them
	wait  time.Time // for that time, or until a target heals
	rest  bool      // there is nothing to do, but to write
}

// stale is how old what is pending may become before the next call or wait; longer
// waits than parked are spent outside of memory.
const (
	stale  = 250 * time.Millisecond
	parked = time.Minute
)

// newCourse is that of a saga as it stands in the journal. If it is fresh, nobody has
// called anything of it.
func newCourse(p plan, head driver.Head, entries []journal.Entry, fresh bool) (*course, error) {
	id := head.Transaction
	m, err := replay(entries)
	if err != nil {
		return nil, bug("drive saga", id, err)
	}
	c := &course{id: id, plan: p, m: m, trials: map[string]*trial{}, idle: map[string]bool{}}
	if !head.Claimed {
		c.scheduled = head.Due
	}
	for _, sent := range m.steps {
		c.idle[sent.key] = fresh
	}
	if m.state == Running || m.state == Completing {
		c.planner, err = p.planner(id, &c.m)
	}
	return c, err
}

func (c *course) close() {
	if c.planner != nil {
		c.planner.close()
	}
}

// note takes records that follow; forced ones have to be durable at once.
func (c *course) note(now time.Time, forced bool, entries ...journal.Entry) error {
	m, err := c.m.with(entries...)
	if err != nil {
		return bug("drive saga", c.id, err)
	}
	if len(c.pending) == 0 {
		c.since = now
	}
	c.m, c.pending, c.forced = m, append(c.pending, entries...), c.forced || forced
	for _, e := range entries {
		switch e.Kind {
		case recordSent:
			c.idle[e.Step] = true
		case recordDecide:
			c.trials = map[string]*trial{}
		}
	}
	return nil
}

// wrote takes that what was pending is durable.
func (c *course) wrote() { c.pending, c.forced = nil, false }

// next is what to do.
func (c *course) next(now time.Time) (move, error) {
	for {
		switch {
		case c.m.state.Final():
			return move{write: len(c.pending) > 0, rest: true}, nil
		case c.m.state == Undoing:
			return c.back(now)
		case c.m.late(now):
			if err := c.abort(now, errLate.Error()); err != nil {
				return move{}, err
			}
			continue
		case c.m.broken():
			if err := c.abort(now, c.m.breach()); err != nil {
				return move{}, err
			}
			continue
		}
		stages, err := c.planner.rest(&c.m)
		if aborted := (errAborted{}); errors.As(err, &aborted) {
			if err := c.abort(now, said(aborted)); err != nil {
				return move{}, err
			}
			continue
		}
		if err != nil {
			return move{}, err
		}
		if len(stages) > 0 && !c.decided() {
			if m, follows, err := c.forward(now, stages); err != nil || !follows {
				return m, err
			}
			continue
		}
		if err := c.commit(now, len(stages) == 0); err != nil {
			return move{}, err
		}
	}
}

// decided reports whether nothing is left to decide, and no record says so.
func (c *course) decided() bool {
	p := c.m.pivot()
	return c.m.state == Running && p != nil && p.fate == done
}

// commit notes the decision, and the end behind the last stage.
func (c *course) commit(now time.Time, last bool) error {
	var entries []journal.Entry
	if c.m.state == Running {
		entries = append(entries, record(recordDecide, decideCommit, why{}))
	}
	if last {
		entries = append(entries, journal.Entry{Kind: recordEnd})
	}
	return c.note(now, last, entries...)
}

// abort notes the decision, and with it what is known of each step that was sent:
// whether it was called, and whether it may have happened.
func (c *course) abort(now time.Time, reason string) error {
	var known, never []journal.Entry
	for _, p := range c.m.steps {
		switch t := c.trials[p.key]; {
		case p.fate != inFlight || p.wait:
		case c.idle[p.key]:
			never = append(never, journal.Entry{Kind: recordNever, Step: p.key})
		case t != nil && t.err != nil:
			known = append(known, record(recordFailed, p.key, why{Unknown: t.maybe, Error: said(t.err)}))
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

// forward goes on with the first stage; follows reports that the next one can be
// looked at.
func (c *course) forward(now time.Time, stages []stage) (m move, follows bool, err error) {
	first := stages[0]
	if first.steps[0].sleep {
		return c.sleep(now, first)
	}
	if sents := c.sents(stages); len(sents) > 0 {
		if err := c.note(now, (c.m.state == Running || c.plan.body != nil) && first.steps[0].local == nil, sents...); err != nil {
			return move{}, false, err
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
func (c *course) sents(stages []stage) (sents []journal.Entry) {
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
func (c *course) sleep(now time.Time, st stage) (m move, follows bool, err error) {
	s := &st.steps[0]
	p := c.m.find(s.key)
	if p == nil {
		sent := record(recordSent, s.key, sending{Stage: st.n, Until: now.Add(s.wait).UnixMilli()})
		if err := c.note(now, true, sent); err != nil {
			return move{}, false, err
		}
		p = c.m.find(s.key)
	}
	if now.Before(p.until) {
		m, err := c.pause(now, p.until, []*progress{p})
		return m, false, err
	}
	return move{}, true, c.note(now, false, journal.Entry{Kind: recordDone, Step: s.key, Data: []byte("null")})
}
