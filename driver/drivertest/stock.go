package drivertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
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

// testStockContextAlreadyEnded checks that the cause is returned and nothing was done.
func testStockContextAlreadyEnded(s *stockScene) {
	s.supply(seat, 5)(stockDone)
	ctx, cause := endedContext(s.T)
	_, held := s.store.Hold(ctx, driver.StockHold{Item: seat, Reservation: "r", N: 1, TTL: time.Hour})
	_, settled := s.store.Settle(ctx, seat, "r", driver.StockCancelled)
	_, adjusted := s.store.Adjust(ctx, driver.StockAdjustment{Item: seat, Operation: "o", Delta: 1})
	_, supplied := s.store.Supply(ctx, seat, 1)
	_, shown := s.store.Level(ctx, seat)
	for _, err := range []error{held, settled, adjusted, supplied, shown} {
		s.mustFail(err, interlock.Definite, cause)
	}
	s.has(seat, 5, 0, 0)
}

// testStockCompetition has many buyers in several processes compete for few units. Each
// repeats its requests, and some return their units.
func testStockCompetition(s *stockScene) {
	const units, buyers = 20, 200
	s.supply(seat, units)(stockDone)
	var sold atomic.Int64
	s.atOnce(buyers, func(i int, store driver.Stock) error {
		r, id := rand.New(rand.NewPCG(7, uint64(i))), fmt.Sprint("buyer/", i)
		for range 1 + r.IntN(2) {
			a, err := store.Hold(s.Context(), driver.StockHold{Item: seat, Reservation: id, N: 1, TTL: time.Hour})
			if err != nil || a.Outcome != driver.StockDone {
				return err
			}
		}
		to := driver.StockConfirmed
		if r.IntN(4) == 0 {
			to = driver.StockCancelled
		}
		for range 1 + r.IntN(2) {
			if a, err := store.Settle(s.Context(), seat, id, to); err != nil || a.Outcome != driver.StockDone {
				return fmt.Errorf("%s is not %s: %+v, %v", id, to, a, err)
			}
		}
		if to == driver.StockConfirmed {
			sold.Add(1)
		}
		return nil
	})
	if sold.Load() > units {
		s.Errorf("%d of %d units were sold", sold.Load(), units)
	}
	s.has(seat, units, 0, sold.Load())
	s.hold(seat, "rest", units-sold.Load()+1, time.Hour)(stockShort(units-sold.Load()+1, units-sold.Load()))
}

// testStockConfirmAndCancelRace checks that one succeeds and the other gets an error.
func testStockConfirmAndCancelRace(s *stockScene) {
	const rounds = 50
	s.supply(seat, rounds)(stockDone)
	sold := int64(0)
	for i := range rounds {
		id := fmt.Sprint("r", i)
		s.hold(seat, id, 1, time.Hour)(stockDone)
		var answers [2]driver.StockAnswer
		s.atOnce(2, func(i int, store driver.Stock) (err error) {
			to := []driver.StockState{driver.StockConfirmed, driver.StockCancelled}[i]
			answers[i], err = store.Settle(s.Context(), seat, id, to)
			return err
		})
		confirmed, cancelled := answers[0], answers[1]
		switch {
		case confirmed.Outcome == driver.StockDone && cancelled == stockSettled(driver.StockConfirmed):
			sold++
		case cancelled.Outcome == driver.StockDone && confirmed == stockSettled(driver.StockCancelled):
		default:
			s.Fatalf("confirmed %+v, cancelled %+v", confirmed, cancelled)
		}
	}
	s.has(seat, rounds, 0, sold)
}

// testStockDeltasRace applies each of many operations by several callers at once, of which some
// take too much.
func testStockDeltasRace(s *stockScene) {
	const supply, operations, callers = 20, 50, 4
	s.supply(seat, supply)(stockDone)
	var applied [operations]atomic.Int64
	s.atOnce(callers, func(_ int, store driver.Stock) error {
		for i := range applied {
			delta := int64(i%7-3)*2 - 1
			a, err := store.Adjust(s.Context(), driver.StockAdjustment{Item: seat, Operation: fmt.Sprint(i), Delta: delta})
			switch {
			case err == nil && a.Outcome == driver.StockDone:
				applied[i].Store(delta)
			case err != nil || a.Outcome != driver.StockShort || a.Available >= a.Want:
				return fmt.Errorf("operation %d: %+v, %v", i, a, err)
			}
		}
		return nil
	})
	sum := int64(supply)
	for i := range applied {
		sum += applied[i].Load()
	}
	s.has(seat, sum, 0, 0)
}

// testLostReplyToHold checks that the outcome is unknown and a repetition converges.
func testLostReplyToHold(s *stockScene) {
	s.supply(seat, 5)(stockDone)
	s.hold(seat, "before", 1, time.Hour)(stockDone) // the connection is open
	hold := func(ctx context.Context) error {
		a, err := s.store.Hold(ctx, driver.StockHold{Item: seat, Reservation: "r", N: 2, TTL: time.Hour})
		if err == nil && a.Outcome != driver.StockDone {
			s.Fatalf("answered %+v", a)
		}
		return err
	}
	s.loseReply(hold)
	fresh := s.beside()
	s.persistUntil("the hold that was made without a reply", func(ctx context.Context) (bool, error) {
		level, err := fresh.Level(ctx, seat)
		return level.Held == 3, err
	})
	s.persist("hold again", hold)
	if level, err := fresh.Level(s.Context(), seat); err != nil || level.Held != 3 {
		s.Fatalf("%+v, %v", level, err)
	}
}

// testStockOverARestart checks that sales survive a restart of a durable store.
func testStockOverARestart(s *stockScene) {
	s.supply(seat, 3)(stockDone)
	s.hold(seat, "sold", 1, time.Hour)(stockDone)
	s.confirm("sold")(stockDone)
	s.hold(seat, "held", 1, time.Hour)(stockDone)
	s.restartAround(func(ctx context.Context) error {
		_, err := s.store.Settle(ctx, seat, "held", driver.StockConfirmed)
		return err
	})
	s.persist("look after the restart", func(ctx context.Context) error {
		level, err := s.store.Level(ctx, seat)
		if want := (driver.StockLevel{Supply: 3, Held: 1, Sold: 1}); err == nil && s.durable && level != want {
			s.Fatalf("a restart made %+v of %+v", level, want)
		}
		return err
	})
}
