package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestKeyValues(t *testing.T) {
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.KeyValuesBackend { return cabinet{memory.NewKeyValues()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// cabinet is a key-value store in memory.
type cabinet struct{ *memory.KeyValues }

func (c cabinet) Open(*testing.T) (driver.KeyValues, error) { return c.KeyValues, nil }

func (c cabinet) Beside(*testing.T) (driver.KeyValues, error) { return c.KeyValues, nil }

func (c cabinet) Faults() drivertest.Faults { return nil }
