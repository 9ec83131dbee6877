package drivertest

import (
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// testBarrierFailedFirst checks that the undo of a failed first runs, without a
// result: the first may have had a partial effect.
func testBarrierFailedFirst[B any](s *barrierScene[B]) {
	fails := BarrierWork{Key: "n", Add: 3, Fail: true}
	s.fails(driver.BarrierFirst, fails, 3)
	s.fails(driver.BarrierFirst, fails, 6) // it ran again
	s.mustCall(driver.BarrierConfirm, driver.BarrierViolation, false, 6)
	s.must(s.call(driver.BarrierUndo), BarrierWork{Key: "n", Known: true}, driver.BarrierIsDone, true, 6)
	s.mustCall(driver.BarrierFirst, driver.BarrierLate, false, 6)

	repeated := s.call(driver.BarrierFirst)
	repeated.Branch = "repeated"
	if _, err := s.try(s.Context(), repeated, fails); err == nil {
		s.Fatal("it did not fail")
	}
	s.must(repeated, barrierWork[driver.BarrierFirst], driver.BarrierIsDone, true, 12)
	s.must(repeated, barrierWork[driver.BarrierFirst], driver.BarrierIsDone, false, 12)
}

// testBarrierFailedUndo checks that a failed undo or confirm is not recorded as done.
func testBarrierFailedUndo[B any](s *barrierScene[B]) {
	for _, p := range []driver.BarrierPhase{driver.BarrierUndo, driver.BarrierConfirm} {
		first, last := s.call(driver.BarrierFirst), s.call(p)
		first.Branch, last.Branch = string(p), string(p)
		key := string(p)
		s.must(first, BarrierWork{Key: key, Add: 3, Result: "-3"}, driver.BarrierIsDone, true, 3)
		if _, err := s.try(s.Context(), last, BarrierWork{Key: key, Fail: true}); err == nil {
			s.Fatal("it did not fail")
		}
		s.must(last, BarrierWork{Key: key, Known: true}, driver.BarrierIsDone, true, 0)
		s.must(last, BarrierWork{Key: key, Known: true}, driver.BarrierIsDone, false, 0)
	}
}

// testBarrierOnlyAFirstRefuses checks that a refusal by any other phase is a failure.
func testBarrierOnlyAFirstRefuses[B any](s *barrierScene[B]) {
	s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, true, 3)
	for _, p := range []driver.BarrierPhase{driver.BarrierUndo, driver.BarrierConfirm} {
		s.fails(p, BarrierWork{Key: "n", Limit: 1}, 3)
	}
	s.mustCall(driver.BarrierUndo, driver.BarrierIsDone, true, 0)
}

// testBarrierLongResult checks that a first with a result above the bound fails and does not run
// again, and that its undo runs.
func testBarrierLongResult[B any](s *barrierScene[B]) {
	longest := s.call(driver.BarrierFirst)
	longest.Branch = "longest"
	w := BarrierWork{Key: "n", Add: 1, Result: strings.Repeat("x", driver.MaxBarrierResult)}
	for _, ran := range []bool{true, false} {
		if got := s.must(longest, w, driver.BarrierIsDone, ran, 1); string(got.Result) != w.Result {
			s.Errorf("a result of %d bytes", len(got.Result))
		}
	}
	w.Result += "x"
	s.fails(driver.BarrierFirst, w, 2)
	if got := s.must(s.call(driver.BarrierFirst), w, driver.BarrierSaysNo, false, 2); !strings.Contains(string(got.Result), "1048577 bytes") {
		s.Errorf("refused: %s", got.Result)
	}
	s.mustCall(driver.BarrierConfirm, driver.BarrierViolation, false, 2)
	s.must(s.call(driver.BarrierUndo), BarrierWork{Key: "n", Add: -1}, driver.BarrierIsDone, true, 1)
}
