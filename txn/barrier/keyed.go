package barrier

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// A Keyed answers all operations of a branch by a store that runs the business and records the
// branch in one atomic step. B is the business: on Redis a script. It is as durable as that store.
// It is safe for concurrent use if Business is. The barrier's own Forget raises its low-water
// mark.
type Keyed[B any] struct {
	// Barrier stores the branches, such as redis.NewBarrier. It is required.
	Barrier driver.Barrier[B]
	// Business returns the business of a call, by its operation ([branch.From]) and its
	// input. It is required and must have no effect of its own, because it is also called
	// if its result is not run. Its error is returned unchanged and not stored: only a
	// business that is run can refuse.
	Business func(ctx context.Context, input []byte) (B, error)
}

// phases has the names of the events in a store.
var phases = map[event]driver.BarrierPhase{
	forward: driver.BarrierFirst, finish: driver.BarrierConfirm, back: driver.BarrierUndo,
}

// Call answers the call of ctx, with the errors of [Do], [Confirm] and [Undo]. The output is that
// of the business of a do, try or prepare. Pass Call to branchhttp.Handler if it is JSON. A
// business that failed half-way is an Uncertain error: its effects stay, see driver.Barrier. So is an
// output of more than 1 MiB; its business does not run again, and its undo runs.
func (k Keyed[B]) Call(ctx context.Context, input []byte) (output []byte, err error) {
	c, err := callOf(ctx, operations[branch.From(ctx).Operation])
	switch {
	case err != nil:
		return nil, err
	case k.Barrier == nil || k.Business == nil:
		return nil, failure.Bug("pass barrier", c.Key(), "a barrier and a function are required")
	}
	sum, err := hash(c, input)
	if err != nil {
		return nil, err
	}
	business, err := k.Business(ctx, input)
	if err != nil {
		return nil, err
	}
	answer, err := k.Barrier.Call(ctx, driver.BarrierCall{Transaction: c.Transaction, Branch: c.Branch, Step: c.Step,
		Phase: phases[c.event], Hash: sum, Begun: c.Begun}, business)
	if err != nil {
		return nil, withClass(err)
	}
	return answerOf(c.Call, answer)
}

// answerOf converts a store's answer.
func answerOf(c branch.Call, answer driver.BarrierAnswer) ([]byte, error) {
	switch answer.Outcome {
	case driver.BarrierIsDone:
		return answer.Result, nil
	case driver.BarrierSaysNo:
		return nil, branch.Fail(&RefusedError{Reason: string(answer.Result)})
	case driver.BarrierLate:
		return nil, branch.Fail(definite(c, ErrCancelled))
	case driver.BarrierViolation:
		state := string(answer.State)
		if answer.State == driver.BarrierUnknown {
			state = string(absent)
		}
		return nil, branch.Fail(&ViolationError{c, state})
	case driver.BarrierOther:
		return nil, &MismatchError{c}
	case driver.BarrierForgotten:
		return nil, definite(c, ErrForgotten)
	}
	return nil, &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Uncertain,
		Err: fmt.Errorf("the barrier answered %q", answer.Outcome)}
}

// A Participant answers all operations of a branch, in transactions of its own. T is the user's
// transaction, I the input of a do, try or prepare, and O its output. Input and output are JSON
// on the wire. It is safe for concurrent use if its functions are.
type Participant[T, I, O any] struct {
	DB    driver.BeginnerAt[T]
	Table Table
	// Do is the function of [Do]. It is required.
	Do func(ctx context.Context, tx T, input I) (O, error)
	// Confirm is the function of [Confirm]; nil confirms without further work.
	Confirm func(ctx context.Context, tx T, done O) error
	// Undo is the function of [Undo]; nil undoes without further work.
	Undo func(ctx context.Context, tx T, done *O) error
}

// Call answers the call of ctx. Pass it to branchhttp.Handler.
func (p *Participant[T, I, O]) Call(ctx context.Context, input []byte) (output []byte, err error) {
	c := branch.From(ctx)
	switch e, ok := operations[c.Operation]; {
	case ok && e == finish:
		confirm := p.Confirm
		if confirm == nil {
			confirm = func(context.Context, T, O) error { return nil }
		}
		return nil, Confirm(ctx, p.DB, p.Table, confirm)
	case ok && e == back:
		undo := p.Undo
		if undo == nil {
			undo = func(context.Context, T, *O) error { return nil }
		}
		return nil, Undo(ctx, p.DB, p.Table, undo)
	}
	if p.Do == nil {
		return nil, failure.Bug("pass barrier", c.Key(), "there is no function to run")
	}
	var in I
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, failure.Bug("pass barrier", c.Key(), "decode input as %T: %w", in, err)
	}
	done, err := Do(ctx, p.DB, p.Table, input, func(ctx context.Context, tx T) (O, error) { return p.Do(ctx, tx, in) })
	if err != nil {
		return nil, err
	}
	return json.Marshal(done)
}
