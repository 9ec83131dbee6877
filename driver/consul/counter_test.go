package consul

import (
	"strconv"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// setBase writes the base like an operator.
func (s *scene) setBase(counter int64) {
	s.Helper()
	s.operate(op{Verb: "set", Key: layout{s.prefix}.base(), Value: []byte(strconv.FormatInt(counter, 10))})
}

func (s *scene) base() base {
	s.Helper()
	e, _, err := s.operator.get(s.Context(), layout{s.prefix}.base())
	testbed.OK(s, err)
	b, err := readBase(e)
	testbed.OK(s, err)
	return b
}

// turn acquires and releases once.
func (s *scene) turn(d *Driver) interlock.Token {
	s.Helper()
	g := s.acquire(d, "n", "o")
	s.release(d, "n", "o")
	return g.Token
}

// testBaseDeletedOrLowered while processes run: tokens rise.
func testBaseDeletedOrLowered(s *scene) {
	d, _ := s.open(Options{})
	other, _ := s.open(Options{})
	last := s.turn(d)
	for _, harm := range []func(){
		func() { s.operate(op{Verb: "delete", Key: layout{s.prefix}.base()}) },
		func() { s.setBase(1) },
	} {
		harm()
		for _, d := range []*Driver{other, d} {
			next := s.turn(d)
			if next <= last {
				s.Fatalf("token %d after %d", next, last)
			}
			last = next
		}
	}
	s.setBase(last.Counter() - 1_000_000)
	if next := s.turn(d); next <= last {
		s.Fatalf("token %d after %d", next, last)
	}
	s.setBase(0)
	if err := s.try(d, "n", "o"); interlock.Kind(err) != interlock.Definite {
		s.Fatalf("with an invalid base: %v", err)
	}
}

// testBaseFollowsTheClock: the counter is at most ten seconds below it, and a grant raises
// the base in its own transaction.
func testBaseFollowsTheClock(s *scene) {
	ahead := time.Duration(0)
	d, w := s.open(Options{TTL: time.Hour, Now: func() time.Time { return time.Now().Add(ahead) }})
	was := s.base()
	s.turn(d)
	if now := s.base(); now != was {
		s.Fatalf("the base %v became %v", was, now)
	}
	ahead = time.Minute
	before, floor := w.count(), interlock.CounterAt(time.Now().Add(ahead))
	token := s.turn(d)
	if token.Counter() < floor || w.count()-before != 2 {
		s.Fatalf("counter %d, want %d; %d requests", token.Counter(), floor, w.count()-before)
	}
	if b := s.base(); b.value != token.Counter() {
		s.Fatalf("the base is %v after token %d", b, token.Counter())
	}
}

// testSeed: a wrong clock, an implausible base and its repair, and a move from another system.
func testSeed(s *scene) {
	drivertest.RunSeed(s.T, drivertest.SeedHarness{
		Open: func(_ *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
			d, _, err := s.tryOpen(Options{Seed: seed})
			return d, err
		},
		OpenAt: func(_ *testing.T, now func() time.Time) error {
			_, _, err := s.tryOpen(Options{Now: now})
			return err
		},
		Set: func(_ *testing.T, counter int64) { s.setBase(counter) },
	})
}

// testClockAhead: a process whose clock is wrong raises nothing.
func testClockAhead(s *scene) {
	ahead := 0 * time.Hour
	d, _ := s.open(Options{TTL: time.Hour, Now: func() time.Time { return time.Now().Add(ahead) }})
	was := s.base()
	ahead = 20 * 365 * 24 * time.Hour
	s.turn(d)
	if now := s.base(); now != was {
		s.Fatalf("the base %v became %v", was, now)
	}
}
