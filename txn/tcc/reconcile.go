package tcc

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Finding is a branch that contradicts the journal. Want is the decision; see
// [coordinator.Finding].
type Finding = coordinator.Finding

// Reconcile repeats the last call of each branch, under the same key. It does so for transactions
// that ended at or after a time of the store's clock, in the order of their ids. A resource that
// has executed the call answers as before and changes nothing. One that has lost it, such as by a
// restored backup, executes it again or rejects it. Rejections and unknown outcomes are yielded.
// An error without an ID ends the iteration. Branches that an operator has resolved or skipped are
// left out. Keep since within the time for which resources store calls: a day suits the defaults
// of [coordinator.Retention].
func (m *Engine) Reconcile(ctx context.Context, since time.Time) iter.Seq2[Finding, error] {
	return records.Reconcile(ctx, m.coordinator.Journal(), since, m.recheck)
}

// recheck repeats the last calls of a transaction.
func (m *Engine) recheck(ctx context.Context, t coordinator.Transaction[machine]) (all []Finding, _ error) {
	of := t.State
	if of.state() != Confirmed && of.state() != Cancelled {
		return nil, nil
	}
	begun := t.Entries[0].Written.Truncate(time.Millisecond)
	for _, b := range of.members {
		if b.fate != settled {
			continue
		}
		if err := m.repeat(ctx, t.Head.Transaction, begun, of.decision, b); err != nil {
			class, _ := branch.ClassOf(err)
			all = append(all, Finding{Step: b.name, Want: coordinator.Effect(of.decision), Got: coordinator.EffectUnknown, Refused: class == branch.ClassFail, Err: err})
		}
	}
	return all, nil
}

// repeat repeats the last call of a branch.
func (m *Engine) repeat(ctx context.Context, id string, begun time.Time, d Decision, b member) error {
	h, ok := m.handles[b.resource]
	if !ok {
		return fmt.Errorf("the engine has no resource %q: add it", b.resource)
	}
	do, op := h.confirm, branch.Confirm
	if d == Cancel {
		do, op = h.cancel, branch.Cancel
	}
	ctx, end := context.WithTimeout(ctx, m.options.Timeout)
	defer end()
	c := branch.Call{Transaction: id, Branch: b.name, Operation: op, Attempt: 1, Begun: begun}
	c.Deadline, _ = ctx.Deadline()
	return coordinator.CatchPanic(branch.With(ctx, c), func(ctx context.Context) error { return do(ctx, b.request, b.hold) })
}

// reconciles registers the reconciliation, which runs in the background only if the coordinator's options
// enable it.
func (m *Engine) reconciles() coordinator.Reconciler {
	hooks := m.options.Hooks
	r := coordinator.Reconciler{Protocol: strings.TrimSuffix(protocol, ":"), Find: m.Reconcile, Done: hooks.Reconciled}
	if hooks.Mismatched != nil {
		r.Found = func(f Finding) {
			hooks.Mismatched(observe.TCCMismatched{Transaction: f.ID, Type: f.Type, Branch: f.Step, Decision: string(f.Want), Refused: f.Refused, Err: f.Err})
		}
	}
	return r
}
