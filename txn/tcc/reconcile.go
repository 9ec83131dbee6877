package tcc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// A Finding is a branch that does not bear out what was decided and done.
type Finding struct {
	ID, Type string
	Branch   string
	Decision Decision
	// Refused says that the resource refuses what the journal says it has done; else
	// Err is why it could not be found out.
	Refused bool
	Err     error
}

// Reconcile goes through the transactions that have ended at a time of the store's clock
// or after it, in the order of their ids, and repeats the last call of each branch under
// its key: a resource that has done it answers as before and changes nothing, and one
// that has lost it, by a restore from a backup perhaps, does it again or refuses. What is
// refused, or cannot be found out, is a Finding. An error without an ID ends it. What a
// person has resolved or skipped is not asked about. Keep since within the time for which
// resources remember: a day is short enough for the defaults of coordinator.Retention.
func (m *Engine) Reconcile(ctx context.Context, since time.Time) iter.Seq2[Finding, error] {
	return func(yield func(Finding, error) bool) {
		for t, err := range records.Ended(ctx, m.coordinator.Journal(), since) {
			id := t.Head.Transaction
			switch {
			case err != nil && id == "":
				yield(Finding{}, err)
				return
			case err != nil && !yield(Finding{ID: id, Type: name(t.Head.Type)}, err):
				return
			case err == nil && !m.recheck(ctx, t, yield):
				return
			}
		}
	}
}

// recheck asks the branches of a transaction; it is false when nobody listens any more.
func (m *Engine) recheck(ctx context.Context, t coordinator.Transaction[machine], yield func(Finding, error) bool) bool {
	id, of := t.Head.Transaction, t.State
	if of.state() != Confirmed && of.state() != Cancelled {
		return true
	}
	begun := t.Entries[0].Written.Truncate(time.Millisecond)
	for _, b := range of.members {
		if b.fate != settled {
			continue
		}
		err := m.repeat(ctx, id, begun, of.decision, b)
		if err == nil {
			continue
		}
		class, _ := branch.ClassOf(err)
		f := Finding{ID: id, Type: name(t.Head.Type), Branch: b.name, Decision: of.decision, Refused: class == branch.ClassFail, Err: err}
		if !yield(f, nil) {
			return false
		}
	}
	return true
}

// repeat makes the last call of a branch again.
func (m *Engine) repeat(ctx context.Context, id string, begun time.Time, d Decision, b member) error {
	h, ok := m.handles[b.resource]
	if !ok {
		return fmt.Errorf("the engine was made without the resource %q: add it", b.resource)
	}
	do, op := h.confirm, branch.Confirm
	if d == Cancel {
		do, op = h.cancel, branch.Cancel
	}
	ctx, end := context.WithTimeout(ctx, m.options.Timeout)
	defer end()
	c := branch.Call{Transaction: id, Branch: b.name, Operation: op, Attempt: 1, Begun: begun}
	c.Deadline, _ = ctx.Deadline()
	return coordinator.Guarded(branch.With(ctx, c), func(ctx context.Context) error { return do(ctx, b.request, b.hold) })
}

// reconcileAll is Reconcile whose findings go to the hooks.
func (m *Engine) reconcileAll(ctx context.Context, since time.Time) (r coordinator.Reconciliation, err error) {
	began, hooks := m.coordinator.Now(), m.options.Hooks
	for f, problem := range m.Reconcile(ctx, since) {
		if problem != nil && f.ID == "" {
			err = problem
			break
		}
		f.Err = errors.Join(problem, f.Err)
		if hooks.Mismatched != nil {
			hooks.Mismatched(observe.TCCMismatched{Transaction: f.ID, Type: f.Type, Branch: f.Branch, Decision: string(f.Decision), Refused: f.Refused, Err: f.Err})
		}
		found := coordinator.Finding{ID: f.ID, Type: f.Type, Step: f.Branch, Want: string(f.Decision), Got: "unsure", Error: f.Err.Error()}
		if f.Refused {
			found.Got, found.Error = "refused: "+f.Err.Error(), ""
		}
		r.Add(found)
	}
	if hooks.Reconciled != nil && ctx.Err() == nil {
		hooks.Reconciled(observe.Reconciled{Since: since, Wrong: r.Wrong, Repaired: r.Repaired, Unknown: r.Unknown, Took: m.coordinator.Now().Sub(began), Err: err})
	}
	return r, err
}
