package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestVersions(t *testing.T) {
	drivertest.RunVersions(t, drivertest.VersionsHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.VersionsBackend { return archive{memory.NewVersions()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// archive is states in memory.
type archive struct{ states *memory.Versions }

func (a archive) Open(*testing.T) (driver.Versions, error) { return a.states, nil }

func (a archive) Beside(*testing.T) (driver.Versions, error) { return a.states, nil }

func (a archive) Faults() drivertest.Faults { return nil }
