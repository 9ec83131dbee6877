package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestLimiter(t *testing.T) {
	drivertest.RunLimiter(t, drivertest.LimiterHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.LimiterBackend { return limiter{memory.NewLimiter()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// limiter is one memory of limits.
type limiter struct{ limiter *memory.Limiter }

func (l limiter) Open(*testing.T) (driver.Limiter, error) { return l.limiter, nil }

func (l limiter) Beside(*testing.T) (driver.Limiter, error) { return l.limiter, nil }

func (l limiter) Faults() drivertest.Faults { return nil }
