package memory_test

import (
	"context"
	"testing"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestParticipant(t *testing.T) {
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(*testing.T, bool) drivertest.ParticipantBackend {
			p := memory.NewParticipant()
			return vault{drivertest.PreparerOf(p, func(_ context.Context, b *memory.Branch, key string, value int) error {
				return b.Set(key, int64(value))
			}, func(_ context.Context, key string) (int, error) { return int(p.Get(key)), nil })}
		},
		Without: drivertest.Servers | drivertest.LostReplies | drivertest.Durable,
	})
}

// vault is one participant, opened again and again.
type vault struct{ branches drivertest.Branches }

func (v vault) Open(*testing.T) (drivertest.Branches, error) { return v.branches, nil }

func (v vault) Beside(*testing.T) (drivertest.Branches, error) { return v.branches, nil }

func (v vault) Faults() drivertest.Faults { return nil }
