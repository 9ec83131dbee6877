package memory_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const ttl = 6 * time.Second

func TestFenced(t *testing.T) {
	drivertest.RunFenced(t, fenced())
}

func fenced() drivertest.Harness {
	return harness(func(s *memory.Space) driver.Fenced { return s.Open(&memory.Options{TTL: ttl}) })
}

func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, fenced()) }

func TestBatch(t *testing.T) { drivertest.RunBatch(t, fenced()) }

func TestBreaker(t *testing.T) { drivertest.RunBreaker(t, fenced()) }

func TestPlain(t *testing.T) {
	drivertest.RunAdvisory(t, harness(func(s *memory.Space) driver.Fenced {
		return drivertest.Advisory(s.OpenPlain(&memory.Options{TTL: ttl}))
	}))
}

// harness runs the whole suite in virtual time.
func harness(open func(*memory.Space) driver.Fenced) drivertest.Harness {
	return drivertest.Harness{
		Bubble: virtual.Test,
		Start: func(*testing.T, bool) drivertest.Backend {
			return &backend{space: memory.NewSpace(), open: open}
		},
		TTL:        ttl,
		Heartbeat:  ttl / 3,
		DeadWaiter: ttl, // a waiter's lease is as long as a claim's
		Without:    drivertest.Servers | drivertest.LostPushes,
	}
}

type backend struct {
	space *memory.Space
	open  func(*memory.Space) driver.Fenced
}

func (b *backend) Open(t *testing.T) (driver.Fenced, error) {
	d := b.open(b.space)
	t.Cleanup(func() {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return d, nil
}

// Crash: a closed driver renews nothing and releases nothing.
func (b *backend) Crash(t *testing.T, d driver.Fenced) {
	testbed.OK(t, d.Close(t.Context()))
}

func (b *backend) Residue(t *testing.T, name string) []string {
	state, err := b.space.Open(nil).Lock(t.Context(), name)
	testbed.OK(t, err)
	var owners []string
	if state.Holder != nil {
		owners = append(owners, state.Holder.Owner)
	}
	for _, w := range state.Waiters {
		owners = append(owners, w.Owner)
	}
	return owners
}

func (b *backend) Delete(_ *testing.T, name string) { b.space.Revoke(name) }

func (b *backend) Faults() drivertest.Faults { return nil }
