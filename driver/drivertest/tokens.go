package drivertest

import (
	"cmp"
	"time"

	"github.com/interlock-dev/interlock"
)

// testTokensOverHandOvers: two processes that always compete.
func testTokensOverHandOvers(s *scene) {
	a, b := s.open(), s.open()
	var tokens []interlock.Token
	holder := s.contender(a, lockName).acquire()
	tokens = append(tokens, holder.grant.Token)
	for range cmp.Or(s.HandOvers, 1000) {
		a, b = b, a
		next := s.contender(a, lockName)
		done := next.start(s.Context())
		holder.release()
		if err := s.wait(done, patience, "the next holder"); err != nil {
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

// testTokensOverRestart: the server is killed and comes back on its data, or
// without it where it keeps none.
func testTokensOverRestart(s *scene) {
	s.tokensOver(func() {
		s.faults.Kill()
		s.faults.Restart()
	})
}

// testTokensOverWipe: the server comes back on an empty data directory.
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
	// The same process goes on, and a new one comes.
	old := s.contender(d, lockName).persist()
	tokens = append(tokens, old.grant.Token)
	old.persistRelease()
	fresh := s.contender(s.open(), lockName).persist()
	tokens = append(tokens, fresh.grant.Token)
	fresh.persistRelease()
	s.mustIncrease(tokens)
}

// testTokensStartAtTheClock: the counter is at least the present time, and does
// not run away from it.
func testTokensStartAtTheClock(s *scene) {
	floor := interlock.CounterAt(time.Now())
	c := s.contender(s.open(), lockName).acquire()
	defer c.release()
	got := c.grant.Token.Counter()
	if ceiling := interlock.CounterAt(time.Now().Add(time.Hour)); got < floor || got > ceiling {
		s.Fatalf("counter %d is not between %d (now) and %d (in an hour)", got, floor, ceiling)
	}
}
