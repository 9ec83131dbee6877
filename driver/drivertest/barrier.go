package drivertest

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// BarrierWork describes a business function of the suite. It changes one counter.
type BarrierWork struct {
	Key   string // of the counter
	Limit int64  // if the counter is at least Limit, the business refuses with "full"; 0 is no limit
	// Add is added to the counter. If Known is set, the stored result of the first is
	// added instead, or nothing if no result is known.
	Add   int64
	Known bool
	// Fail makes the business fail with "broken" after it has added.
	Fail   bool
	Result string // the result that it returns
}

// BarrierHarness gives [RunBarrier] access to one driver.Barrier and its store, and
// creates the businesses that it runs.
type BarrierHarness[B any] struct {
	StoreHarness[driver.Barrier[B]]
	// Business returns a business for the store of a backend.
	Business func(b BarrierBackend[B], w BarrierWork) B
	// Count returns the value of a counter. Its path has no faults.
	Count func(t *testing.T, b BarrierBackend[B], key string) int64
}

// BarrierBackend is one running store of branches.
type BarrierBackend[B any] = StoreBackend[driver.Barrier[B]]

// RunBarrier runs the conformance suite of driver.Barrier.
func RunBarrier[B any](t *testing.T, h BarrierHarness[B]) {
	runStore(t, h.StoreHarness, func(s *storeScene[driver.Barrier[B]]) *barrierScene[B] {
		return &barrierScene[B]{storeScene: s, h: h, began: time.Now().Add(-100 * stride).Truncate(time.Millisecond)}
	}, []suiteTest[*barrierScene[B]]{
		// Answers.
		{"BarrierRejectsAnotherInput", 0, testBarrierRejectsAnotherInput[B]},
		{"BarrierEveryState", 0, testBarrierEveryState[B]},
		{"BarrierResultIsData", 0, testBarrierResultIsData[B]},
		{"BarrierNamesAreData", 0, testBarrierNamesAreData[B]},
		{"BarrierBadInput", 0, testBarrierBadInput[B]},
		{"BarrierContextAlreadyEnded", 0, testBarrierContextAlreadyEnded[B]},
		{"BarrierCompetition", 0, testBarrierCompetition[B]},
		// A business that fails.
		{"BarrierFailedFirstIsUndone", 0, testBarrierFailedFirst[B]},
		{"BarrierFailedUndoRunsAgain", 0, testBarrierFailedUndo[B]},
		{"BarrierOnlyAFirstRefuses", 0, testBarrierOnlyAFirstRefuses[B]},
		{"BarrierLongResult", 0, testBarrierLongResult[B]},
		// Forgetting.
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
	h     BarrierHarness[B]
	began time.Time // when the transactions of the test began
}

// call returns a call of the branch that most tests use.
func (s *barrierScene[B]) call(p driver.BarrierPhase) driver.BarrierCall {
	sum := sha256.Sum256([]byte("input"))
	return driver.BarrierCall{Transaction: "order/42", Branch: "stock", Phase: p, Hash: sum[:], Begun: s.began}
}

// barrierWork is the work of most tests. A first adds 3 and returns -3, an undo adds the result
// of the first, and a confirm adds 100.
var barrierWork = map[driver.BarrierPhase]BarrierWork{
	driver.BarrierFirst:   {Key: "n", Add: 3, Result: "-3"},
	driver.BarrierUndo:    {Key: "n", Known: true},
	driver.BarrierConfirm: {Key: "n", Add: 100},
}

// try makes a call that may fail.
func (s *barrierScene[B]) try(ctx context.Context, c driver.BarrierCall, w BarrierWork) (driver.BarrierAnswer, error) {
	return s.store.Call(ctx, c, s.h.Business(s.backend, w))
}

// must makes a call and requires an outcome, whether the business ran, and the value
// of the counter afterwards.
func (s *barrierScene[B]) must(c driver.BarrierCall, w BarrierWork, want driver.BarrierOutcome, ran bool, count int64) driver.BarrierAnswer {
	s.Helper()
	got, err := s.try(s.Context(), c, w)
	if err != nil || got.Outcome != want || got.Ran != ran {
		s.Fatalf("%s: %+v, %v, want %s, and that it ran: %v", c.Phase, got, err, want, ran)
	}
	s.counts(w.Key, count)
	return got
}

// stride is the time between the begins of two transactions. A mark at the second
// forgets the branches of the first.
const stride = 2 * driver.BarrierSpread

// mustCall makes the usual call and checks it as must does.
func (s *barrierScene[B]) mustCall(p driver.BarrierPhase, want driver.BarrierOutcome, ran bool, count int64) driver.BarrierAnswer {
	s.Helper()
	return s.must(s.call(p), barrierWork[p], want, ran, count)
}

// fails makes a call and requires that its business fails.
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
	if got, err := s.store.Forget(s.Context(), mark, nil, limit); err != nil || got != want {
		s.Fatalf("forget: %d, %v, want %d", got, err, want)
	}
}
