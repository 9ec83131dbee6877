package barrier

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// A Keyed answers all operations of a branch by a store that runs the business itself,
// in the step that remembers it: B is what it runs, a script on Redis. It is no more
// durable than that store. It is safe for concurrent use if Business is. Its low-water
// mark is raised by its barrier's own Forget.
type Keyed[B any] struct {
	// Barrier is where branches are remembered, redis.NewBarrier say; it is needed.
	Barrier driver.Barrier[B]
	// Business makes what is run for a call, whose operation, [branch.From], says what:
	// for a do, try or prepare with its input, for the others with whatever they came
	// with. It is needed, changes nothing by itself, and is called also if nothing is
	// run then. Its error is returned as it is, and not remembered: only what is run can
	// refuse.
	Business func(ctx context.Context, input []byte) (B, error)
}

// phases has the events as a store names them.
var phases = map[event]driver.BarrierPhase{
	forward: driver.BarrierFirst, finish: driver.BarrierConfirm, back: driver.BarrierUndo,
}

// Call answers the call that ctx bears, with the errors of [Do], [Confirm] and [Undo].
// The output is what the business of a do, try or prepare returned, JSON if it is for
// branchhttp.Handler, which is made with this function. A business that failed half way is
// an Uncertain error: what it did before stays, see driver.Barrier.
func (k Keyed[B]) Call(ctx context.Context, input []byte) (output []byte, err error) {
	c, err := callOf(ctx, operations[branch.From(ctx).Operation])
	switch {
	case err != nil:
		return nil, err
	case k.Barrier == nil || k.Business == nil:
		return nil, failure.Bug("pass barrier", c.Key(), "there is no barrier, or no function to run")
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
