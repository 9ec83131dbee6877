package memory_test

import (
	"context"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestValues(t *testing.T) {
	drivertest.RunValues(t, inMemory(func() driver.Values { return memory.NewSpace().Values() }))
}

func TestVersions(t *testing.T) {
	drivertest.RunVersions(t, inMemory(func() driver.Versions { return memory.NewVersions() }))
}

func TestOnce(t *testing.T) {
	drivertest.RunOnce(t, inMemory(func() driver.Once { return memory.NewOnce() }))
}

func TestKeyValues(t *testing.T) {
	drivertest.RunKeyValues(t, inMemory(func() driver.KeyValues { return memory.NewKeyValues() }))
}

func TestIdempotency(t *testing.T) {
	drivertest.RunIdempotency(t, inMemory(func() driver.Idempotency { return memory.NewIdempotency() }))
}

func TestLimiter(t *testing.T) {
	drivertest.RunLimiter(t, inMemory(func() driver.Limiter { return memory.NewLimiter() }))
}

func TestStock(t *testing.T) {
	drivertest.RunStock(t, inMemory(func() driver.Stock { return memory.NewStock() }))
}

func TestNotifier(t *testing.T) {
	drivertest.RunNotifier(t, inMemory(func() driver.Notifier { return &memory.Notifier{} }))
}

func TestSinkSuite(t *testing.T) {
	drivertest.RunSink(t, inMemory(func() drivertest.KeptSink { return keptSink{&memory.Sink{}} }))
}

func TestLattices(t *testing.T) {
	h := inMemory(func() driver.Lattices { return memory.NewLattices() })
	h.Without |= drivertest.Durable
	drivertest.RunLattices(t, h)
}

func TestJournal(t *testing.T) {
	h := inMemory(func() driver.Journal { return memory.NewJournal() })
	h.Bubble = nil
	drivertest.RunJournal(t, h)
}

func TestParticipant(t *testing.T) {
	h := inMemory(func() drivertest.Branches {
		p := memory.NewParticipant()
		return drivertest.PreparerOf(p, func(_ context.Context, b *memory.Branch, key string, value int) error {
			return b.Set(key, int64(value))
		}, func(_ context.Context, key string) (int, error) { return int(p.Get(key)), nil })
	})
	h.Bubble = nil
	h.Without |= drivertest.Durable
	drivertest.RunParticipant(t, h)
}

// inMemory returns the harness of stores that new returns, in virtual time.
func inMemory[S any](new func() S) drivertest.StoreHarness[S] {
	return drivertest.StoreHarness[S]{
		Bubble:  virtual.Test,
		Start:   func(*testing.T, bool) drivertest.StoreBackend[S] { return single[S]{new()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	}
}

// single is one store for all openings.
type single[S any] struct{ store S }

func (s single[S]) Open(*testing.T) (S, error) { return s.store, nil }

func (s single[S]) Beside(*testing.T) (S, error) { return s.store, nil }

func (single[S]) Faults() drivertest.Faults { return nil }

type keptSink struct{ *memory.Sink }

func (k keptSink) Kept(_ context.Context, topic string) ([]driver.Message, error) {
	return slices.DeleteFunc(k.Messages(), func(m driver.Message) bool { return m.Topic != topic }), nil
}
