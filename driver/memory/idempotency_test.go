package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestIdempotency(t *testing.T) {
	drivertest.RunIdempotency(t, drivertest.IdempotencyHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.IdempotencyBackend { return requests{memory.NewIdempotency()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// requests is one store of them.
type requests struct{ records *memory.Idempotency }

func (r requests) Open(*testing.T) (driver.Idempotency, error) { return r.records, nil }

func (r requests) Beside(*testing.T) (driver.Idempotency, error) { return r.records, nil }

func (r requests) Faults() drivertest.Faults { return nil }
