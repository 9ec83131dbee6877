package drivertest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

func testBarrierRejectsAnotherInput[B any](s *barrierScene[B]) {
	s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, true, 3)
	other := s.call(driver.BarrierFirst)
	other.Hash = bytes.Repeat([]byte("x"), sha256.Size)
	s.must(other, barrierWork[driver.BarrierFirst], driver.BarrierOther, false, 3)
	bare := s.call(driver.BarrierUndo)
	bare.Hash = nil
	s.must(bare, barrierWork[driver.BarrierUndo], driver.BarrierIsDone, true, 0)
	s.must(other, barrierWork[driver.BarrierFirst], driver.BarrierLate, false, 0)
}

// testBarrierEveryState checks that the store answers each phase in each state as
// driver.BarrierState.Meet does, with the stored result, and runs the business only if Meet says so.
func testBarrierEveryState[B any](s *barrierScene[B]) {
	first, fails := barrierWork[driver.BarrierFirst], BarrierWork{Key: "n", Fail: true}
	full := BarrierWork{Key: "n", Limit: -1}
	type step struct {
		p driver.BarrierPhase
		w BarrierWork
	}
	into := map[driver.BarrierState][]step{
		driver.BarrierUnknown:   nil,
		driver.BarrierStarted:   {{driver.BarrierFirst, fails}},
		driver.BarrierDone:      {{driver.BarrierFirst, first}},
		driver.BarrierRefused:   {{driver.BarrierFirst, full}},
		driver.BarrierDoubted:   {{driver.BarrierFirst, fails}, {driver.BarrierFirst, full}},
		driver.BarrierConfirmed: {{driver.BarrierFirst, first}, {driver.BarrierConfirm, BarrierWork{Key: "n"}}},
		driver.BarrierUndone:    {{driver.BarrierUndo, BarrierWork{Key: "n"}}},
	}
	results := map[driver.BarrierState]string{driver.BarrierDone: "-3", driver.BarrierConfirmed: "-3", driver.BarrierRefused: "full", driver.BarrierDoubted: "full"}
	for _, state := range driver.BarrierStates() {
		for _, p := range []driver.BarrierPhase{driver.BarrierFirst, driver.BarrierConfirm, driver.BarrierUndo} {
			c := s.call(p)
			c.Transaction = "in " + string(state) + ", " + string(p)
			for _, before := range into[state] {
				made := c
				made.Phase = before.p
				_, _ = s.try(s.Context(), made, before.w) // some fail, as expected
			}
			move := state.Meet(p)
			ran, want := move.Outcome == driver.BarrierRun, move.Outcome
			if ran {
				want = driver.BarrierIsDone
			}
			got, err := s.try(s.Context(), c, BarrierWork{Key: c.Transaction, Add: 1})
			if err != nil || got.Outcome != want || got.State != move.Next || got.Ran != ran {
				s.Errorf("%s when %q: %+v, %v, want %+v", p, state, got, err, move)
			}
			if p == driver.BarrierFirst && string(got.Result) != results[state] || p == driver.BarrierUndo && len(got.Result) > 0 {
				s.Errorf("%s when %q: the result is %q", p, state, got.Result)
			}
			if added := s.h.Count(s.T, s.backend, c.Transaction) == 1; added != ran {
				s.Errorf("%s when %q: it ran: %v, and it has an effect: %v", p, state, ran, added)
			}
		}
	}
}

// testBarrierResultIsData stores results of any bytes, empty and large.
func testBarrierResultIsData[B any](s *barrierScene[B]) {
	for i, result := range []string{"", "x", "\x00\xff binary\r\n", "{\"a\": [1]}", "'; drop table x; --", "ключ", strings.Repeat("0123456789abcde\xff", 64<<10)} {
		c := s.call(driver.BarrierFirst)
		c.Step = strconv.Itoa(i)
		for again := range 2 {
			if got := s.must(c, BarrierWork{Key: "n", Result: result}, driver.BarrierIsDone, again == 0, 0); string(got.Result) != result {
				s.Fatalf("%.40q became %.40q", result, got.Result)
			}
		}
	}
}

// testBarrierNamesAreData checks that each triple of names is a separate branch.
func testBarrierNamesAreData[B any](s *barrierScene[B]) {
	names := append([]string{"1:a/", "a/1:b", "b/", "1:"}, oddNames...)
	seen := map[[3]string]bool{}
	for _, name := range names {
		for _, key := range [][3]string{{name, "b", ""}, {"a", name, ""}, {"a", "b", name}, {name, name, name}, {"a", "b" + name, ""}} {
			c := s.call(driver.BarrierFirst)
			c.Transaction, c.Branch, c.Step = key[0], key[1], key[2]
			if seen[key] || c.Check() != nil {
				continue
			}
			seen[key] = true
			s.must(c, BarrierWork{Key: "n", Add: 1}, driver.BarrierIsDone, true, int64(len(seen)))
		}
	}
	if len(seen) < 3*len(oddNames) {
		s.Fatalf("only %d branches are allowed", len(seen))
	}
	s.forgets(time.Now(), driver.MaxForget, len(seen))
}

func testBarrierBadInput[B any](s *barrierScene[B]) {
	long := strings.Repeat("x", 256)
	for name, change := range map[string]func(*driver.BarrierCall){
		"no transaction":   func(c *driver.BarrierCall) { c.Transaction = "" },
		"long transaction": func(c *driver.BarrierCall) { c.Transaction = long[:driver.MaxTransaction+1] },
		"no branch":        func(c *driver.BarrierCall) { c.Branch = "" },
		"long branch":      func(c *driver.BarrierCall) { c.Branch = long },
		"long step":        func(c *driver.BarrierCall) { c.Step = long },
		"no phase":         func(c *driver.BarrierCall) { c.Phase = "" },
		"another phase":    func(c *driver.BarrierCall) { c.Phase = "redo" },
		"no hash":          func(c *driver.BarrierCall) { c.Hash = nil },
		"short hash":       func(c *driver.BarrierCall) { c.Hash = c.Hash[:31] },
		"not begun":        func(c *driver.BarrierCall) { c.Begun = time.Time{} },
	} {
		c := s.call(driver.BarrierFirst)
		change(&c)
		_, err := s.try(s.Context(), c, barrierWork[driver.BarrierFirst])
		if err == nil || interlock.Kind(err) != interlock.Bug {
			s.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []struct {
		mark          time.Time
		except, limit int
	}{{time.Time{}, 0, 1}, {time.UnixMilli(0), 0, 1}, {s.began, 0, 0}, {s.began, 0, -1}, {s.began, 0, driver.MaxForget + 1}, {s.began, driver.MaxExcept + 1, 1}} {
		_, err := s.store.Forget(s.Context(), bad.mark, make([]string, bad.except), bad.limit)
		s.mustFail(err, interlock.Bug, nil)
	}
	s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, true, 3) // the earlier calls had no effect
}

func testBarrierContextAlreadyEnded[B any](s *barrierScene[B]) {
	ctx, cause := endedContext(s.T)
	_, err := s.try(ctx, s.call(driver.BarrierFirst), barrierWork[driver.BarrierFirst])
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Forget(ctx, time.Now(), nil, 1)
	s.mustFail(err, interlock.Definite, cause)
	s.mustCall(driver.BarrierFirst, driver.BarrierIsDone, true, 3)
}

// testBarrierCompetition runs firsts and undos of a branch from several processes at
// the same time. At most one of each takes effect, and all answered callers get the
// same answer.
func testBarrierCompetition[B any](s *barrierScene[B]) {
	for round := range 30 {
		key := "n" + strconv.Itoa(round)
		ran := make(chan driver.BarrierPhase, 6)
		s.atOnce(cap(ran), func(i int, barrier driver.Barrier[B]) error {
			p := []driver.BarrierPhase{driver.BarrierFirst, driver.BarrierUndo}[(i+round)%2]
			c, w := s.call(p), barrierWork[p]
			c.Transaction, w.Key = key, key
			got, err := barrier.Call(s.Context(), c, s.h.Business(s.backend, w))
			if got.Ran {
				ran <- p
			}
			if err != nil || got.Outcome != driver.BarrierIsDone && (p == driver.BarrierUndo || got.Outcome != driver.BarrierLate) {
				return fmt.Errorf("%s: %+v, %v", p, got, err)
			}
			return nil
		})
		close(ran)
		count := map[driver.BarrierPhase]int{}
		for p := range ran {
			count[p]++
		}
		if count[driver.BarrierFirst] > 1 || count[driver.BarrierUndo] != count[driver.BarrierFirst] {
			s.Fatalf("round %d: ran %v", round, count)
		}
		s.counts(key, 0)
	}
}

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
