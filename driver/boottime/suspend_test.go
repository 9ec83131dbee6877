package boottime

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

// machine is a kernel whose suspends are injected. It counts the readings.
type machine struct {
	up             time.Time
	slept          time.Duration
	boots, steadys int
}

func (m *machine) boot() time.Duration {
	m.boots++
	return time.Since(m.up) + m.slept
}

func (m *machine) monotonic() time.Duration {
	m.steadys++
	return time.Since(m.up)
}

func newMachine() (*machine, *clock) {
	m := &machine{up: time.Now().Add(-time.Hour), slept: 20 * time.Minute}
	return m, newClock(m)
}

// A deadline that has passed on the boot clock has passed for the next Now, but for the error of
// measuring. This holds for a suspend of any length between two readings.
func TestNoDeadlineIsValidAfterASuspend(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, time.Second, 30 * time.Second, time.Hour} {
		m, c := newMachine()
		for range 20 {
			deadline := c.sent().Add(ttl)
			m.slept += ttl
			if left := deadline.Sub(c.now()); left > noise {
				t.Fatalf("%v remain of %v after a suspend of as long", left, ttl)
			}
			if left := c.sent().Add(ttl).Sub(c.now()); left <= 0 || left > ttl+noise {
				t.Fatalf("%v remain of %v that began after a suspend", left, ttl)
			}
		}
	}
}

// Suspends that are shorter than the error of measuring add up to one at most.
func TestShortSuspendsAddUp(t *testing.T) {
	m, c := newMachine()
	began, before := c.now(), m.boot()
	for range 500 {
		m.slept += noise * 2 / 5
		if elapsed, shown := m.boot()-before, c.now().Sub(began); shown < elapsed-2*noise {
			t.Fatalf("%v shown as %v", elapsed, shown)
		}
	}
}

// A send before anybody has noticed a suspend counts from too early, never from too late.
func TestSentIsNotAfterNow(t *testing.T) {
	m, c := newMachine()
	for range 100 {
		m.slept += time.Minute
		if sent, now := c.sent(), c.now(); sent > now.Add(-59*time.Second) {
			t.Fatal("a suspend is known that nobody looked for")
		} else if c.sent() < now {
			t.Fatal("a suspend that Now noticed is not known")
		}
	}
}

func TestCostOfTheClock(t *testing.T) {
	m, c := newMachine()
	m.boots, m.steadys = 0, 0
	const readings = 1000
	for range readings {
		c.sent()
	}
	if m.boots+m.steadys > 0 {
		t.Errorf("Sent made %d system calls", m.boots+m.steadys)
	}
	for range readings {
		c.now()
	}
	// A reading that is interrupted for longer than noise measures once more.
	if m.boots+m.steadys > 2*readings {
		t.Errorf("%d system calls for %d times Now, want one each", m.boots+m.steadys, readings)
	}
}

func TestVirtualTimeHasNoSuspends(t *testing.T) {
	m, c := newMachine()
	m.boots = 0
	virtual.Test(t, func(t *testing.T) {
		began := c.now()
		time.Sleep(time.Minute)
		if d := c.now().Sub(began); d != time.Minute {
			t.Errorf("a virtual minute measured as %v", d)
		}
	})
	if m.boots > 0 {
		t.Error("the kernel's clock was read for virtual time")
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}

func BenchmarkSent(b *testing.B) {
	for b.Loop() {
		Sent()
	}
}
