package version_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/version"
)

// wallClock shows the set time, and is read by one goroutine at a time.
type wallClock struct{ at time.Time }

func (w *wallClock) now() time.Time { return w.at }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newClock(t testing.TB, w *wallClock, ahead time.Duration) *version.Clock {
	t.Helper()
	c, err := version.NewClock(&version.ClockOptions{MaxAhead: ahead, Now: w.now})
	ok(t, err)
	return c
}

// TestClockRisesOverAClockSetBack, and returns to the wall clock with time.
func TestClockRisesOverAClockSetBack(t *testing.T) {
	w := &wallClock{noon}
	c := newClock(t, w, 0)
	first := c.Next()
	if !version.TimeOf(first).Equal(noon) || c.Ahead() != 0 {
		t.Fatalf("%v, %v ahead", version.TimeOf(first), c.Ahead())
	}
	w.at = noon.Add(-time.Hour)
	last := first
	for range 200_000 { // more than the counter has room for in a millisecond
		next := c.Next()
		if next <= last {
			t.Fatalf("%d after %d", next, last)
		}
		last = next
	}
	if a := c.Ahead(); a < time.Hour || a > time.Hour+5*time.Millisecond {
		t.Errorf("%v ahead", a)
	}
	w.at = noon.Add(time.Second)
	if next := c.Next(); next <= last || !version.TimeOf(next).Equal(w.at) || c.Ahead() != 0 {
		t.Errorf("%v after the wall clock overtook", version.TimeOf(next))
	}
}

// TestClockIsMadeAnew after a restart, with a wall clock that was set back: it
// continues from the stored version, or is refused.
func TestClockIsMadeAnew(t *testing.T) {
	last := newClock(t, &wallClock{noon}, 0).Next()
	c := newClock(t, &wallClock{noon.Add(-time.Minute)}, 0)
	ok(t, c.Observe(last))
	if next := c.Next(); next <= last {
		t.Errorf("%d after %d", next, last)
	}
	c = newClock(t, &wallClock{noon.Add(-time.Minute - time.Millisecond)}, 0)
	mustFail(t, c.Observe(last), interlock.Definite, nil)
}

// TestClockAtTheEndsOfTime: all versions are valid for a guard.
func TestClockAtTheEndsOfTime(t *testing.T) {
	for _, at := range []time.Time{{}, time.UnixMilli(0), time.UnixMilli(math.MaxInt64), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} {
		c := newClock(t, &wallClock{at}, 0)
		last := int64(0)
		for range 100 {
			s := c.Stamp("p")
			if s.Version <= last || s.Check() != nil {
				t.Fatalf("at %v: %v after %d", at, s, last)
			}
			last = s.Version
		}
	}
}

func TestClockRefusesTheFarFuture(t *testing.T) {
	w := &wallClock{noon}
	far := newClock(t, &wallClock{noon.Add(time.Minute + time.Millisecond)}, 0).Next()
	c := newClock(t, w, 0)
	before := c.Next()
	for _, remote := range []int64{far, math.MaxInt64} {
		var ahead *version.AheadError
		err := c.Observe(remote)
		if mustFail(t, err, interlock.Definite, nil); !errors.As(err, &ahead) || ahead.Version != remote || ahead.Max != time.Minute || ahead.Ahead <= time.Minute {
			t.Errorf("%v", err)
		}
	}
	if next := c.Next(); next != before+1 {
		t.Errorf("what was refused changed the clock: %d after %d", next, before)
	}
	near := newClock(t, &wallClock{noon.Add(time.Minute)}, 0).Next()
	ok(t, c.Observe(near))
	if next := c.Next(); next != near+1 {
		t.Errorf("%d after %d was observed", next, near)
	}
	for _, bad := range []int64{0, -1, math.MinInt64} {
		mustFail(t, c.Observe(bad), interlock.Bug, nil)
	}
	for _, bad := range []time.Duration{-1, interlock.MaxAhead + 1} {
		_, err := version.NewClock(&version.ClockOptions{MaxAhead: bad})
		mustFail(t, err, interlock.Bug, nil)
	}
	c, err := version.NewClock(nil)
	if ok(t, err); time.Since(version.TimeOf(c.Next())).Abs() > time.Minute {
		t.Error("without options it is not the time of day")
	}
}

// TestClocksOrderWhatHappenedBefore: producers with different, drifting and jumping clocks send
// each other messages. Each version that a producer has seen is older than its next one, and no
// clock is further ahead than the wall clocks differ.
func TestClocksOrderWhatHappenedBefore(t *testing.T) {
	const producers, apart = 5, 20 * time.Second
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2014))
		walls, clocks := make([]*wallClock, producers), make([]*version.Clock, producers)
		known := make([]int64, producers) // the latest version that each has seen
		skew := func() time.Duration { return time.Duration(r.Int64N(int64(apart))) }
		for i := range clocks {
			walls[i] = &wallClock{noon.Add(skew())}
			clocks[i] = newClock(t, walls[i], 0)
		}
		real := noon
		for range 400 {
			i, j := r.IntN(producers), r.IntN(producers)
			real = real.Add(time.Duration(r.Int64N(int64(50 * time.Millisecond))))
			walls[i].at = real.Add(skew()) // forward or back
			sent := clocks[i].Stamp(string(rune('a' + i)))
			if sent.Version <= known[i] {
				t.Fatalf("seed %d: %v after %d was known", seed, sent, known[i])
			}
			known[i] = sent.Version
			if i != j {
				ok(t, clocks[j].Observe(sent.Version))
				known[j] = max(known[j], sent.Version)
			}
			if lead := version.TimeOf(sent.Version).Sub(real); lead > apart+time.Millisecond {
				t.Fatalf("seed %d: a clock runs %v before all wall clocks", seed, lead-apart)
			}
		}
	}
}

// TestClockIsShared: no version is issued twice.
func TestClockIsShared(t *testing.T) {
	c := newClock(t, &wallClock{noon}, 0)
	const lanes, each = 8, 500
	got := make([][]int64, lanes)
	var running sync.WaitGroup
	for i := range lanes {
		running.Go(func() {
			for range each {
				got[i] = append(got[i], c.Next())
			}
		})
	}
	running.Wait()
	seen := map[int64]bool{}
	for _, lane := range got {
		for _, v := range lane {
			if seen[v] {
				t.Fatalf("%d was given twice", v)
			}
			seen[v] = true
		}
	}
}
