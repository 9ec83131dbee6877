package saga

import (
	"time"

	"github.com/interlock-dev/interlock/observe"
)

// The calls of hooks.

// announce tells of edits that came too late, of an end, and again of a dead letter.
func (d *drive) announce() {
	hooks := d.engine.options.Hooks
	for _, e := range d.reverted {
		if hooks.Crossed != nil {
			hooks.Crossed(e)
		}
	}
	d.reverted = nil
	if d.m.state == DeadLetter && hooks.Dead != nil {
		e := observe.SagaDead{Saga: d.ID(), Type: d.plan.name, Reason: d.m.why()}
		for _, p := range d.m.dead() {
			e.Steps = append(e.Steps, p.Step)
		}
		hooks.Dead(e)
	}
	if d.m.state != d.told && d.m.state.Final() && hooks.Ended != nil {
		hooks.Ended(observe.SagaEnded{Saga: d.ID(), Type: d.plan.name, State: string(d.m.state), Reason: d.m.why()})
	}
	d.told = d.m.state
}

// failedReport reports a call of OnEnd that failed.
func (d *drive) failedReport(err error, wait time.Duration) {
	if f := d.engine.options.Hooks.Tried; f != nil {
		f(observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Attempt: d.reports, Err: err, Again: wait})
	}
}

// tried tells of a call that did not succeed, and of a step that seems never to.
func (d *drive) tried(c *call, v verdict) {
	hooks := d.engine.options.Hooks
	if hooks.Tried != nil {
		e := observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Undo: c.phase == inUndo, Attempt: c.trial.calls, Err: c.trial.err}
		if v == again {
			e.Again = c.trial.next.Sub(d.Now())
		}
		hooks.Tried(e)
	}
	forever := c.phase == atPivot || c.phase == afterPivot
	if n := c.trial.attempts; forever && v == again && !c.trial.ongoing && n%d.engine.options.Stuck == 0 && hooks.Stuck != nil {
		hooks.Stuck(observe.SagaStuck{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Attempts: n, Err: c.trial.err})
	}
}
