package drivertest

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A BarrierWork is what a business of the suite does, all of it on a counter.
type BarrierWork struct {
	Key   string // of the counter
	Limit int64  // a counter that has so many refuses, with "full"; 0 is no limit
	// Add is added to the counter. With Known, it is what the result of the first says
	// instead, and nothing if none is known.
	Add   int64
	Known bool
	// Fail makes the business fail once it has added, with "broken".
	Fail   bool
	Result string // what it returns
}

// BarrierHarness tells [RunBarrier] how to reach one driver.Barrier and its store, and
// how to make what it runs.
type BarrierHarness[B any] struct {
	StoreHarness[driver.Barrier[B]]
	// Business makes a business for the store of a backend.
	Business func(b BarrierBackend[B], w BarrierWork) B
	// Count is what a counter has, past every fault.
	Count func(t *testing.T, b BarrierBackend[B], key string) int64
}

// BarrierBackend is one running store of branches.
type BarrierBackend[B any] = StoreBackend[driver.Barrier[B]]

// RunBarrier runs the suite of driver.Barrier.
func RunBarrier[B any](t *testing.T, h BarrierHarness[B]) {
	runStore(t, h.StoreHarness, func(s *storeScene[driver.Barrier[B]]) *barrierScene[B] {
		return &barrierScene[B]{storeScene: s, h: h, barrier: s.store, began: time.Now().Add(-100 * stride).Truncate(time.Millisecond)}
	}, []suiteTest[*barrierScene[B]]{
		// What is answered.
		{"BarrierFirstRunsOnce", 0, testBarrierFirstRunsOnce[B]},
		{"BarrierUndoRunsOnce", 0, testBarrierUndoRunsOnce[B]},
		{"BarrierEmptyUndoBlocksTheFirst", 0, testBarrierEmptyUndo[B]},
		{"BarrierConfirmsOnce", 0, testBarrierConfirmsOnce[B]},
		{"BarrierReportsViolations", 0, testBarrierReportsViolations[B]},
		{"BarrierStoresARefusal", 0, testBarrierStoresARefusal[B]},
		{"BarrierRejectsAnotherInput", 0, testBarrierRejectsAnotherInput[B]},
		{"BarrierEveryState", 0, testBarrierEveryState[B]},
		{"BarrierResultIsData", 0, testBarrierResultIsData[B]},
		{"BarrierNamesAreData", 0, testBarrierNamesAreData[B]},
		{"BarrierBadInput", 0, testBarrierBadInput[B]},
		{"BarrierContextAlreadyEnded", 0, testBarrierContextAlreadyEnded[B]},
		{"BarrierCompetition", 0, testBarrierCompetition[B]},
		// A business that fails.
		{"BarrierFailedFirstIsUndone", 0, testBarrierFailedFirst[B]},
		{"BarrierRefusalAfterAFailureIsUndone", 0, testBarrierDoubted[B]},
		{"BarrierFailedUndoRunsAgain", 0, testBarrierFailedUndo[B]},
		{"BarrierOnlyAFirstRefuses", 0, testBarrierOnlyAFirstRefuses[B]},
		// What is forgotten.
		{"BarrierForgetsBelowTheMark", 0, testBarrierForgets[B]},
		{"BarrierForgetsInBatches", 0, testBarrierForgetsInBatches[B]},
		{"BarrierForgetsAllButExceptions", 0, testBarrierForgetsExcept[B]},
		{"BarrierMarkNeverFalls", 0, testBarrierMarkNeverFalls[B]},
		{"BarrierBegunMayDiffer", 0, testBarrierBegunMayDiffer[B]},
		{"BarrierLaterBegin", 0, testBarrierLaterBegin[B]},
		{"BarrierLateCallDuringForget", 0, testBarrierLateCall[B]},
		// Faults.
		{"LostReplyToBarrier", Servers | LostReplies | onPaths, testLostReplyToBarrier[B]},
		{"BarrierOverARestart", Servers | Durable, testBarrierOverARestart[B]},
	})
}

// barrierScene is one test with its store and a first opening of it.
type barrierScene[B any] struct {
	*storeScene[driver.Barrier[B]]
	h       BarrierHarness[B]
	barrier driver.Barrier[B]
	began   time.Time // when the transactions of the test did
}

// call is one of the branch that most tests are about.
func (s *barrierScene[B]) call(p driver.BarrierPhase) driver.BarrierCall {
	sum := sha256.Sum256([]byte("input"))
	return driver.BarrierCall{Transaction: "order/42", Branch: "stock", Phase: p, Hash: sum[:], Begun: s.began}
}

// The work that most tests do: a first adds 3 and says so, an undo takes back what the
// first has said, and a confirm adds 100.
var barrierWork = map[driver.BarrierPhase]BarrierWork{
	driver.BarrierFirst:   {Key: "n", Add: 3, Result: "-3"},
	driver.BarrierUndo:    {Key: "n", Known: true},
	driver.BarrierConfirm: {Key: "n", Add: 100},
}

// try makes a call that may fail.
func (s *barrierScene[B]) try(ctx context.Context, c driver.BarrierCall, w BarrierWork) (driver.BarrierAnswer, error) {
	return s.barrier.Call(ctx, c, s.h.Business(s.backend, w))
}

// must makes a call, and requires an outcome, whether it runs the business, and what
// the counter has then.
func (s *barrierScene[B]) must(c driver.BarrierCall, w BarrierWork, want driver.BarrierOutcome, ran bool, count int64) driver.BarrierAnswer {
	s.Helper()
	got, err := s.try(s.Context(), c, w)
	if err != nil || got.Outcome != want || got.Ran != ran {
		s.Fatalf("%s: %+v, %v, want %s, and that it ran: %v", c.Phase, got, err, want, ran)
	}
	s.counts(w.Key, count)
	return got
}

// stride is how far two transactions begin apart so that a mark at the second has the
// first's branches forgotten.
const stride = 2 * driver.BarrierSpread

// is makes the usual call.
func (s *barrierScene[B]) is(p driver.BarrierPhase, want driver.BarrierOutcome, ran bool, count int64) driver.BarrierAnswer {
	s.Helper()
	return s.must(s.call(p), barrierWork[p], want, ran, count)
}

// fails makes a call whose business fails.
func (s *barrierScene[B]) fails(p driver.BarrierPhase, w BarrierWork, count int64) {
	s.Helper()
	_, err := s.try(s.Context(), s.call(p), w)
	s.mustFail(err, interlock.Uncertain, interlock.ErrUncertain)
	s.counts(w.Key, count)
}

func (s *barrierScene[B]) counts(key string, want int64) {
	s.Helper()
	if got := s.h.Count(s.T, s.backend, key); got != want {
		s.Fatalf("%q has %d, want %d", key, got, want)
	}
}

func (s *barrierScene[B]) forgets(mark time.Time, limit, want int) {
	s.Helper()
	if got, err := s.barrier.Forget(s.Context(), mark, nil, limit); err != nil || got != want {
		s.Fatalf("forget: %d, %v, want %d", got, err, want)
	}
}
