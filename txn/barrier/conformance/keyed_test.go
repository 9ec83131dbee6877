package conformance_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
	"github.com/interlock-dev/interlock/txn/branch"
)

// TestMemoryBarrierPasses: the executable specification agrees with the page.
func TestMemoryBarrierPasses(t *testing.T) {
	t.Parallel()
	seats, p := memory.NewBarrier(), newSimple(none)
	participant := barrier.Keyed[memory.Business]{Barrier: seats, Business: func(ctx context.Context, input []byte) (memory.Business, error) {
		var in conformance.Input
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, err
		}
		return func([]byte, bool) ([]byte, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			output, err := p.business.run(branch.From(ctx), in)
			if err != nil {
				err = memory.Refusal(err.Error())
			}
			return output, err
		}, nil
	}}
	everything(t, served(t, participant.Call, p.effects))
}
