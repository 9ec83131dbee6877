package conformance_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
	"github.com/interlock-dev/interlock/txn/branch"
)

// phases are the operations as a driver.Barrier has them.
var phases = map[branch.Operation]driver.BarrierPhase{
	branch.Do: driver.BarrierFirst, branch.Try: driver.BarrierFirst, branch.Prepare: driver.BarrierFirst,
	branch.Confirm: driver.BarrierConfirm, branch.Commit: driver.BarrierConfirm,
	branch.Undo: driver.BarrierUndo, branch.Cancel: driver.BarrierUndo, branch.Rollback: driver.BarrierUndo,
}

// keyed answers the call that ctx bears by a barrier whose store runs the business.
func keyed[B any](ctx context.Context, b driver.Barrier[B], input []byte, business B) ([]byte, error) {
	c, sum := branch.From(ctx), sha256.Sum256(input)
	answer, err := b.Call(ctx, driver.BarrierCall{Transaction: c.Transaction, Branch: c.Branch, Step: c.Step,
		Phase: phases[c.Operation], Hash: sum[:], Begun: c.Begun}, business)
	switch {
	case interlock.Kind(err) == interlock.Retryable:
		return nil, branch.Retry(err)
	case err != nil:
		return nil, err
	}
	switch answer.Outcome {
	case driver.BarrierIsDone:
		return answer.Result, nil
	case driver.BarrierSaysNo:
		return nil, branch.Fail(errors.New(string(answer.Result)))
	case driver.BarrierLate:
		return nil, branch.Fail(barrier.ErrCancelled)
	case driver.BarrierViolation:
		return nil, branch.Fail(fmt.Errorf("%w: it is %s", barrier.ErrViolation, answer.State))
	case driver.BarrierForgotten:
		return nil, barrier.ErrForgotten
	}
	return nil, fmt.Errorf("the call came before with another input, or another time of its transaction's begin")
}

// TestMemoryBarrierPasses: the executable specification does what the page says.
func TestMemoryBarrierPasses(t *testing.T) {
	t.Parallel()
	seats, p := memory.NewBarrier(), newSimple(none)
	work := func(ctx context.Context, input []byte) ([]byte, error) {
		var in conformance.Input
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, err
		}
		return keyed(ctx, seats, input, func([]byte, bool) ([]byte, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			output, err := p.business.run(branch.From(ctx), in)
			if err != nil {
				err = memory.Refusal(err.Error())
			}
			return output, err
		})
	}
	everything(t, served(t, work, p.effects))
}
