package consul

import (
	"errors"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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
		s.Fatalf("with a base that is none: %v", err)
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

// testImplausibleBaseIsRepaired with a record, if Options ask for it.
func testImplausibleBaseIsRepaired(s *scene) {
	s.setBase(interlock.CounterAt(time.Now().Add(10 * 365 * 24 * time.Hour)))
	var implausible *driver.ImplausibleError
	if _, _, err := s.tryOpen(Options{}); !errors.As(err, &implausible) || interlock.Kind(err) != interlock.Definite {
		s.Fatalf("got %v", err)
	}
	var before, after int64
	d, _ := s.open(Options{Seed: driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "an operator",
		Lowered: func(b, a int64) { before, after = b, a }}}})
	if token := s.turn(d); driver.Plausible(token.Counter(), time.Now()) != nil || before <= after || token.Counter() < after {
		s.Fatalf("token %d, lowered from %d to %d", token.Counter(), before, after)
	}
	records, err := d.Breaks(s.Context(), driver.BaseName, 10)
	if err != nil || len(records) != 1 || records[0].Reason != "a wrong clock" || records[0].By != "an operator" {
		s.Fatalf("on record: %+v, %v", records, err)
	}
}

// testClockAhead: a process whose clock is wrong raises nothing.
func testClockAhead(s *scene) {
	ahead := 0 * time.Hour
	o := Options{TTL: time.Hour, Now: func() time.Time { return time.Now().Add(ahead) }}
	d, _ := s.open(o)
	was := s.base()
	ahead = 20 * 365 * 24 * time.Hour
	s.turn(d)
	if now := s.base(); now != was {
		s.Fatalf("the base %v became %v", was, now)
	}
	var clock *driver.ClockError
	if _, _, err := s.tryOpen(o); !errors.As(err, &clock) {
		s.Fatalf("got %v", err)
	}
}

// testTokensAfterAMove from another system start above its tokens.
func testTokensAfterAMove(s *scene) {
	after, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
	testbed.OK(s, err)
	d, _ := s.open(Options{Seed: driver.Seed{After: after}})
	if token := s.turn(d); token <= after {
		s.Fatalf("token %d after %d", token, after)
	}
	later, _ := s.open(Options{})
	if token := s.turn(later); token <= after {
		s.Fatalf("token %d after %d", token, after)
	}
}
