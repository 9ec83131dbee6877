package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestValues(t *testing.T) {
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.ValuesBackend { return shelf{memory.NewSpace()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// shelf is the values of a space.
type shelf struct{ space *memory.Space }

func (s shelf) Open(*testing.T) (driver.Values, error) { return s.space.Values(), nil }

func (s shelf) Beside(*testing.T) (driver.Values, error) { return s.space.Values(), nil }

func (s shelf) Faults() drivertest.Faults { return nil }
