package saga

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// DefaultReconcile is how often sagas are reconciled if a step has a Check.
const DefaultReconcile = time.Hour

// reconciles has the coordinator reconcile in the background.
func (e *Engine) reconciles() error {
	every := e.options.Reconcile
	if every == 0 {
		every = DefaultReconcile
	}
	if !e.checks() {
		every = -1
	}
	return e.coordinator.Reconciles(protocol, every, e.reconcileAll)
}

// checks reports whether any step can be asked.
func (e *Engine) checks() bool {
	for _, p := range e.plans {
		for i := range p.known {
			if p.known[i].truth != nil {
				return true
			}
		}
	}
	return false
}

// reconcileAll is Reconcile whose findings go to the hooks.
func (e *Engine) reconcileAll(ctx context.Context, since time.Time) (r coordinator.Reconciliation, err error) {
	began, hooks := e.coordinator.Now(), e.options.Hooks
	for f, problem := range e.Reconcile(ctx, since) {
		if problem != nil && f.ID == "" {
			err = problem
			break
		}
		f.Err = errors.Join(problem, f.Err)
		if hooks.Mismatched != nil {
			hooks.Mismatched(observe.SagaMismatched{Saga: f.ID, Type: f.Type, Step: f.Step, Want: f.Want.String(), Got: f.Got.String(), Repaired: f.Repaired, Err: f.Err})
		}
		found := coordinator.Finding{ID: f.ID, Type: f.Type, Step: f.Step, Want: f.Want.String(), Got: f.Got.String(), Repaired: f.Repaired}
		if f.Err != nil {
			found.Error = f.Err.Error()
		}
		r.Add(found)
	}
	if hooks.Reconciled != nil && ctx.Err() == nil {
		hooks.Reconciled(observe.Reconciled{Since: since, Wrong: r.Wrong, Repaired: r.Repaired, Unknown: r.Unknown, Took: e.coordinator.Now().Sub(began), Err: err})
	}
	return r, err
}
