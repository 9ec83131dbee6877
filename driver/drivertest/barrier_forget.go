package drivertest

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// at returns a call of a branch of a transaction that began at begun.
func (s *barrierScene[B]) at(p driver.BarrierPhase, branch string, begun time.Time) driver.BarrierCall {
	c := s.call(p)
	c.Branch, c.Begun = branch, begun
	return c
}

// testBarrierForgets checks that branches BarrierSpread below the mark are deleted and
// their calls rejected before any business. Branches at or above the mark stay.
func testBarrierForgets[B any](s *barrierScene[B]) {
	mark := s.began
	below, kept, on := mark.Add(-driver.BarrierSpread-time.Millisecond), mark.Add(-driver.BarrierSpread), mark
	adds := BarrierWork{Key: "n", Add: 1, Result: "-1"}
	s.must(s.at(driver.BarrierFirst, "done", below), adds, driver.BarrierIsDone, true, 1)
	s.must(s.at(driver.BarrierUndo, "undone", below), adds, driver.BarrierIsDone, false, 1)
	s.must(s.at(driver.BarrierFirst, "refused", below), BarrierWork{Key: "n", Limit: 1}, driver.BarrierSaysNo, true, 1)
	if _, err := s.try(s.Context(), s.at(driver.BarrierFirst, "failed", below), BarrierWork{Key: "n", Fail: true}); err == nil {
		s.Fatal("it did not fail")
	}
	s.must(s.at(driver.BarrierFirst, "on", on), adds, driver.BarrierIsDone, true, 2)
	s.must(s.at(driver.BarrierFirst, "kept", kept), adds, driver.BarrierIsDone, true, 3)
	s.forgets(mark, 10, 4)
	s.forgets(mark, 10, 0)
	s.must(s.at(driver.BarrierFirst, "kept", kept), adds, driver.BarrierForgotten, false, 3)
	s.must(s.at(driver.BarrierUndo, "kept", mark.Add(-time.Millisecond)), adds, driver.BarrierForgotten, false, 3)
	s.must(s.at(driver.BarrierUndo, "kept", mark), BarrierWork{Key: "n", Known: true}, driver.BarrierIsDone, true, 2)
	for _, branch := range []string{"done", "undone", "refused", "failed", "never came"} {
		for _, p := range []driver.BarrierPhase{driver.BarrierFirst, driver.BarrierConfirm, driver.BarrierUndo} {
			if got := s.must(s.at(p, branch, below), adds, driver.BarrierForgotten, false, 2); got.State != "" || len(got.Result) > 0 {
				s.Fatalf("%+v", got)
			}
		}
	}
	s.must(s.at(driver.BarrierFirst, "on", on), adds, driver.BarrierIsDone, false, 2)
	s.must(s.at(driver.BarrierUndo, "on", on), BarrierWork{Key: "n", Known: true}, driver.BarrierIsDone, true, 1)
	s.must(s.at(driver.BarrierFirst, "new", on), adds, driver.BarrierIsDone, true, 2)
}

// testBarrierForgetsInBatches checks that the first batch already rejects all late calls.
func testBarrierForgetsInBatches[B any](s *barrierScene[B]) {
	const branches = 25
	for i := range branches {
		s.must(s.at(driver.BarrierFirst, strconv.Itoa(i), s.began.Add(time.Duration(i)*time.Millisecond)), BarrierWork{Key: "n", Add: 1},
			driver.BarrierIsDone, true, int64(i+1))
	}
	mark := s.began.Add(stride)
	s.forgets(mark, 10, 10)
	for i := range branches {
		s.must(s.at(driver.BarrierFirst, strconv.Itoa(i), s.began.Add(time.Duration(i)*time.Millisecond)), BarrierWork{Key: "n", Add: 1},
			driver.BarrierForgotten, false, branches)
	}
	s.forgets(mark, 10, 10)
	s.forgets(mark, 10, 5)
}

// testBarrierMarkNeverFalls checks that a mark neither falls nor moves implausibly far ahead.
func testBarrierMarkNeverFalls[B any](s *barrierScene[B]) {
	s.forgets(s.began, 1, 0)
	s.forgets(s.began.Add(-time.Hour), 1, 0) // from a coordinator whose clock was set back
	adds := BarrierWork{Key: "n", Add: 1}
	s.must(s.at(driver.BarrierFirst, "b", s.began.Add(-time.Millisecond)), adds, driver.BarrierForgotten, false, 0)
	_, err := s.store.Forget(s.Context(), time.Now().Add(interlock.MaxAhead+time.Hour), nil, 1)
	s.mustFail(err, interlock.Definite, nil)
	s.must(s.at(driver.BarrierFirst, "b", s.began), adds, driver.BarrierIsDone, true, 1)
}

// testBarrierForgetsExcept checks that an excepted transaction keeps its branches and
// calls until a mark does not except it. All others are deleted.
func testBarrierForgetsExcept[B any](s *barrierScene[B]) {
	adds := BarrierWork{Key: "n", Add: 1, Result: "-1"}
	call := func(p driver.BarrierPhase, transaction, branch string, i int) driver.BarrierCall {
		c := s.at(p, branch, s.began.Add(time.Duration(i)*stride))
		c.Transaction = transaction
		return c
	}
	forgets := func(i, limit, want int, except ...string) {
		s.Helper()
		if got, err := s.store.Forget(s.Context(), s.began.Add(time.Duration(i)*stride), except, limit); err != nil || got != want {
			s.Fatalf("forget: %d, %v, want %d", got, err, want)
		}
	}
	const old = "1:o/d\x00,\xff" // ids are data
	for i := range 5 {
		s.must(call(driver.BarrierFirst, old, strconv.Itoa(i), 0), adds, driver.BarrierIsDone, true, int64(2*i+1))
		s.must(call(driver.BarrierFirst, "t"+strconv.Itoa(i), "b", 0), adds, driver.BarrierIsDone, true, int64(2*i+2))
	}
	forgets(2, 2, 2, old, "never came")
	forgets(2, 2, 2)       // the mark does not rise, so the old exceptions stay
	forgets(1, 9, 1, "t0") // and new ones are not added
	forgets(3, 9, 0, old)
	s.must(call(driver.BarrierFirst, old, "4", 0), adds, driver.BarrierIsDone, false, 10)
	s.must(call(driver.BarrierUndo, old, "4", 0), BarrierWork{Key: "n", Known: true}, driver.BarrierIsDone, true, 9)
	s.must(call(driver.BarrierFirst, old, "new", 0), adds, driver.BarrierIsDone, true, 10)
	for _, other := range []string{"t0", "o/d\x00,\xff", "1", "never came"} {
		s.must(call(driver.BarrierFirst, other, "b", 0), adds, driver.BarrierForgotten, false, 10)
	}
	forgets(4, 9, 6)
	s.must(call(driver.BarrierFirst, old, "new", 0), adds, driver.BarrierForgotten, false, 10)
}

// testBarrierBegunMayDiffer checks that a call with another begin of the same
// transaction, from another clock or a successor, is the same call.
func testBarrierBegunMayDiffer[B any](s *barrierScene[B]) {
	for i, p := range []driver.BarrierPhase{driver.BarrierConfirm, driver.BarrierUndo} {
		for n, apart := range []time.Duration{time.Millisecond, -time.Millisecond, driver.BarrierSpread} {
			w := barrierWork[driver.BarrierFirst]
			w.Key = strconv.Itoa(3*i + n)
			branch, last := "b"+w.Key, BarrierWork{Key: w.Key, Add: 100}
			s.must(s.at(driver.BarrierFirst, branch, s.began), w, driver.BarrierIsDone, true, 3)
			got := s.must(s.at(driver.BarrierFirst, branch, s.began.Add(apart)), w, driver.BarrierIsDone, false, 3)
			if string(got.Result) != "-3" {
				s.Fatalf("%+v", got)
			}
			s.must(s.at(p, branch, s.began.Add(apart)), last, driver.BarrierIsDone, true, 103)
			s.must(s.at(p, branch, s.began.Add(-apart)), last, driver.BarrierIsDone, false, 103)
		}
	}
}

// testBarrierLaterBegin checks that a call with a later begin than the earlier calls
// finds its branch, even if the mark is between the two.
func testBarrierLaterBegin[B any](s *barrierScene[B]) {
	adds := BarrierWork{Key: "n", Add: 1}
	s.must(s.at(driver.BarrierUndo, "undone", s.began), adds, driver.BarrierIsDone, false, 0)
	s.must(s.at(driver.BarrierFirst, "done", s.began), adds, driver.BarrierIsDone, true, 1)
	later := s.began.Add(driver.BarrierSpread)
	// Neither a call nor its repetition changes the begin by which a branch is forgotten.
	s.must(s.at(driver.BarrierFirst, "done", later), adds, driver.BarrierIsDone, false, 1)
	for _, mark := range []time.Time{s.began.Add(time.Millisecond), later} {
		s.forgets(mark, 10, 0)
		s.must(s.at(driver.BarrierFirst, "undone", later), adds, driver.BarrierLate, false, 1)
		s.must(s.at(driver.BarrierFirst, "done", later), adds, driver.BarrierIsDone, false, 1)
	}
	s.forgets(later.Add(time.Millisecond), 10, 2)
}

// testBarrierLateCall repeats firsts while the mark passes them. None runs twice,
// whichever comes first.
func testBarrierLateCall[B any](s *barrierScene[B]) {
	const branches, callers = 40, 4
	begun := func(i int) time.Time { return s.began.Add(time.Duration(i) * stride) }
	s.atOnce(callers+1, func(caller int, barrier driver.Barrier[B]) error {
		if caller == callers {
			for i := range branches {
				if _, err := barrier.Forget(s.Context(), begun(i+1), nil, 3); err != nil {
					return err
				}
			}
			return nil
		}
		for i := range branches * 3 {
			n := (i + caller*7) % branches
			c := s.at(driver.BarrierFirst, strconv.Itoa(n), begun(n))
			got, err := barrier.Call(s.Context(), c, s.h.Business(s.backend, BarrierWork{Key: c.Branch, Add: 1}))
			if err != nil || got.Outcome != driver.BarrierIsDone && got.Outcome != driver.BarrierForgotten {
				return fmt.Errorf("%+v, %v", got, err)
			}
		}
		return nil
	})
	for n := range branches {
		if got := s.h.Count(s.T, s.backend, strconv.Itoa(n)); got > 1 {
			s.Errorf("branch %d ran %d times", n, got)
		}
	}
}

// testLostReplyToBarrier checks that the outcome is unknown and a repetition converges.
func testLostReplyToBarrier[B any](s *barrierScene[B]) {
	another := s.call(driver.BarrierFirst)
	another.Transaction = "another" // the connection is open, and the store has seen such a request
	first := barrierWork[driver.BarrierFirst]
	s.must(another, first, driver.BarrierIsDone, true, 3)
	s.loseReply(func(ctx context.Context) error {
		_, err := s.try(ctx, s.call(driver.BarrierFirst), first)
		return err
	})
	s.store = s.open()
	if got := s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, false, 6); string(got.Result) != "-3" {
		s.Fatalf("%+v", got)
	}
}

// testBarrierOverARestart checks that a durable server keeps markers and the mark when
// its process is killed.
func testBarrierOverARestart[B any](s *barrierScene[B]) {
	adds := BarrierWork{Key: "n", Add: 1}
	s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, true, 3)
	blocked := s.call(driver.BarrierUndo)
	blocked.Branch = "blocked"
	s.must(blocked, adds, driver.BarrierIsDone, false, 3)
	s.forgets(s.began, 1, 0)
	call := func(ctx context.Context) error {
		_, err := s.try(ctx, s.call(driver.BarrierFirst), adds)
		return err
	}
	s.restartAround(call)
	s.persist("a call after the restart", call)
	s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, false, 3)
	blocked.Phase = driver.BarrierFirst
	s.must(blocked, adds, driver.BarrierLate, false, 3)
	s.must(s.at(driver.BarrierFirst, "b", s.began.Add(-time.Millisecond)), adds, driver.BarrierForgotten, false, 3)
	s.mustCall(driver.BarrierUndo, driver.BarrierIsDone, true, 0)
}
