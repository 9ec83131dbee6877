package drivertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// StockHarness gives [RunStock] access to one driver.Stock and its store.
type StockHarness = StoreHarness[driver.Stock]

// StockBackend is one running store of stock.
type StockBackend = StoreBackend[driver.Stock]

// RunStock runs the conformance suite of driver.Stock. The store must remember ids for
// longer than a test takes.
func RunStock(t *testing.T, h StockHarness) {
	runStore(t, h, func(s *storeScene[driver.Stock]) *stockScene { return &stockScene{s} }, []suiteTest[*stockScene]{
		{"MissingItem", 0, testMissingItem},
		{"StockIsSoldOnce", 0, testStockIsSoldOnce},
		{"StockRepeatingConverges", 0, testStockRepeatingConverges},
		{"StockReservationIsReused", 0, testStockReservationIsReused},
		{"StockSettledStaysSo", 0, testStockSettledStaysSo},
		{"StockExpires", 0, testStockExpires},
		{"StockReclaimsOnlyAsNeeded", 0, testStockReclaimsOnlyAsNeeded},
		{"StockLateConfirm", 0, testStockLateConfirm},
		{"StockAdjustsOnce", 0, testStockAdjustsOnce},
		{"StockSupply", 0, testStockSupply},
		{"StockNumbersAreExact", 0, testStockNumbersAreExact},
		{"StockNamesAreData", 0, testStockNamesAreData},
		{"StockImpossibleRequests", 0, testStockImpossibleRequests},
		{"StockContextAlreadyEnded", 0, testStockContextAlreadyEnded},
		{"StockCompetition", 0, testStockCompetition},
		{"StockConfirmAndCancelRace", 0, testStockConfirmAndCancelRace},
		{"StockDeltasRace", 0, testStockDeltasRace},
		{"LostReplyToHold", Servers | LostReplies | onPaths, testLostReplyToHold},
		{"StockOverARestart", Servers, testStockOverARestart},
	})
}

// seat is the item that most tests use.
const seat = "seat/12A"

// stockScene is one test with its store and a first opening of it.
type stockScene struct {
	*storeScene[driver.Stock]
}

// stockDone is the answer to a successful operation.
var stockDone = driver.StockAnswer{Outcome: driver.StockDone}

// answers requires an outcome, and the fields of a refusal.
func (s *stockScene) answers(a driver.StockAnswer, err error) func(want driver.StockAnswer) {
	s.Helper()
	return func(want driver.StockAnswer) {
		s.Helper()
		if want.Outcome == driver.StockDone {
			a.State = want.State // every answer may have more
		}
		if err != nil || a != want {
			s.Fatalf("answered %+v, %v; want %+v", a, err, want)
		}
	}
}

func (s *stockScene) supply(item string, n int64) func(driver.StockAnswer) {
	s.Helper()
	return s.answers(s.store.Supply(s.Context(), item, n))
}

func (s *stockScene) hold(item, id string, n int64, ttl time.Duration) func(driver.StockAnswer) {
	s.Helper()
	return s.answers(s.store.Hold(s.Context(), driver.StockHold{Item: item, Reservation: id, N: n, TTL: ttl}))
}

func (s *stockScene) settle(item, id string, to driver.StockState) func(driver.StockAnswer) {
	s.Helper()
	return s.answers(s.store.Settle(s.Context(), item, id, to))
}

func (s *stockScene) confirm(id string) func(driver.StockAnswer) {
	s.Helper()
	return s.settle(seat, id, driver.StockConfirmed)
}

func (s *stockScene) cancel(id string) func(driver.StockAnswer) {
	s.Helper()
	return s.settle(seat, id, driver.StockCancelled)
}

func (s *stockScene) adjust(a driver.StockAdjustment) func(driver.StockAnswer) {
	s.Helper()
	return s.answers(s.store.Adjust(s.Context(), a))
}

// has requires an item's level, also in another opening of the store.
func (s *stockScene) has(item string, supply, held, sold int64) {
	s.Helper()
	want := driver.StockLevel{Supply: supply, Held: held, Sold: sold}
	for _, store := range []driver.Stock{s.store, s.beside()} {
		if got, err := store.Level(s.Context(), item); err != nil || got != want {
			s.Fatalf("%q is %+v, %v; want %+v", item, got, err, want)
		}
	}
}

// lapse waits until the given number of units of seat is held and not expired.
func (s *stockScene) lapse(held int64) {
	s.Helper()
	testbed.Eventually(s, fmt.Sprint(held, " units are held"), patience, func() bool {
		level, err := s.store.Level(s.Context(), seat)
		testbed.OK(s, err)
		return level.Held == held
	})
}

func stockShort(want, available int64) driver.StockAnswer {
	return driver.StockAnswer{Outcome: driver.StockShort, Want: want, Available: available}
}

func stockSettled(state driver.StockState) driver.StockAnswer {
	return driver.StockAnswer{Outcome: driver.StockSettled, State: state}
}

var (
	stockGone    = driver.StockAnswer{Outcome: driver.StockGone, State: driver.StockExpired}
	stockOther   = driver.StockAnswer{Outcome: driver.StockOther}
	stockUnknown = driver.StockAnswer{Outcome: driver.StockUnknown}
)
