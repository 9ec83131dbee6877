package drivertest

import (
	"cmp"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// testTokensOverHandOvers has two processes compete continuously.
func testTokensOverHandOvers(s *scene) {
	a, b := s.open(), s.open()
	var tokens []interlock.Token
	holder := s.contender(a, lockName).acquire()
	tokens = append(tokens, holder.grant.Token)
	for range cmp.Or(s.HandOvers, 1000) {
		a, b = b, a
		next := s.contender(a, lockName)
		done := next.start(s.Context(), holder)
		holder.persistRelease()
		if err := s.wait(done, patience, "the next holder"); mayRepeat(err) {
			next.persist()
		} else if err != nil {
			s.Fatal(err)
		}
		if holder = next; !holder.valid() {
			s.Fatal("a grant that has ended already")
		}
		tokens = append(tokens, holder.grant.Token)
	}
	holder.release()
	s.mustIncrease(tokens)
	s.mustBeEmpty(lockName)
}

// testTokensOverRestart kills the server and restarts it on its data, or without data
// if it stores none.
func testTokensOverRestart(s *scene) {
	s.tokensOver(func() {
		s.faults.Kill()
		s.faults.Restart()
	})
}

// testTokensOverWipe restarts the server on an empty data directory.
func testTokensOverWipe(s *scene) { s.tokensOver(s.faults.Wipe) }

func (s *scene) tokensOver(disaster func()) {
	s.Helper()
	d := s.open()
	var tokens []interlock.Token
	for range 20 {
		c := s.contender(d, lockName).acquire()
		tokens = append(tokens, c.grant.Token)
		c.release()
	}
	disaster()
	// The same process continues, and a new one joins.
	old := s.contender(d, lockName).persist()
	tokens = append(tokens, old.grant.Token)
	old.persistRelease()
	fresh := s.contender(s.open(), lockName).persist()
	tokens = append(tokens, fresh.grant.Token)
	fresh.persistRelease()
	s.mustIncrease(tokens)
}

// testTokensStartAtTheClock checks that the counter is at least the present time and not
// far above it.
func testTokensStartAtTheClock(s *scene) {
	floor := interlock.CounterAt(time.Now())
	c := s.contender(s.open(), lockName).acquire()
	defer c.release()
	got := c.grant.Token.Counter()
	if ceiling := interlock.CounterAt(time.Now().Add(time.Hour)); got < floor || got > ceiling {
		s.Fatalf("counter %d is not between %d (now) and %d (in an hour)", got, floor, ceiling)
	}
}

// tokenStep is one token of a sequence.
type tokenStep struct {
	token            interlock.Token
	strict, accepted bool
}

// tokenSteps returns sequences that a store could order wrongly: tokens differ in their last bits or
// number of digits, or exceed what a float represents. now is the counter of the present time.
func tokenSteps(t *testing.T, now int64) (steps []tokenStep) {
	t.Helper()
	if now < 1<<40 {
		t.Fatalf("the present counter is %d: no test of large ones", now)
	}
	for _, s := range []struct {
		counter          int64
		sub              int
		strict, accepted bool
	}{
		{5, 1, false, true},
		{5, 0, false, false},
		{5, 1, false, true},
		{5, 1, true, false},
		{5, 2, true, true},
		{6, 0, false, true},
		{5, interlock.MaxSub, false, false},
		{1000, 0, false, true}, // more digits
		{999, 0, false, false},
		{1<<40 + 1, 0, false, true},
		{1 << 40, interlock.MaxSub, false, false},
		{now, 7, false, true},
		{now, 7, false, true},
		{now, 7, true, false},
		{now, 6, false, false},
		{now, 8, true, true},
		{now, interlock.MaxSub, false, true},
		{now - 1, interlock.MaxSub, false, false},
		{now + 1, 0, true, true},
		{now, interlock.MaxSub, false, false},
		{now, interlock.MaxSub, true, false},
	} {
		steps = append(steps, tokenStep{newToken(t, s.counter, s.sub), s.strict, s.accepted})
	}
	return steps
}
