package saga

import (
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
