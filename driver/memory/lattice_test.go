package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestLattices(t *testing.T) {
	drivertest.RunLattices(t, drivertest.LatticesHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.LatticesBackend { return lattices{memory.NewLattices()} },
		Without: drivertest.Servers | drivertest.LostReplies | drivertest.Durable,
	})
}

// lattices is one memory of states.
type lattices struct{ lattices *memory.Lattices }

func (l lattices) Open(*testing.T) (driver.Lattices, error) { return l.lattices, nil }

func (l lattices) Beside(*testing.T) (driver.Lattices, error) { return l.lattices, nil }

func (l lattices) Faults() drivertest.Faults { return nil }
