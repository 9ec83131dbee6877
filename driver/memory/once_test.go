package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestOnce(t *testing.T) {
	drivertest.RunOnce(t, drivertest.OnceHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.OnceBackend { return inbox{memory.NewOnce()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// inbox is one memory of messages.
type inbox struct{ once *memory.Once }

func (i inbox) Open(*testing.T) (driver.Once, error) { return i.once, nil }

func (i inbox) Beside(*testing.T) (driver.Once, error) { return i.once, nil }

func (i inbox) Faults() drivertest.Faults { return nil }
