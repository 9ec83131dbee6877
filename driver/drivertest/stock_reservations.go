package drivertest

import (
	"math"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// brief is the duration of a hold that expires during a test.
const brief = 30 * time.Millisecond

func testMissingItem(s *stockScene) {
	s.has(seat, 0, 0, 0)
	s.hold(seat, "alice", 1, time.Hour)(stockUnknown)
	s.adjust(driver.StockAdjustment{Item: seat, Operation: "o", Delta: 1})(stockUnknown)
	s.confirm("alice")(stockUnknown)
	s.cancel("alice")(stockDone)
	s.has(seat, 0, 0, 0)
	s.supply(seat, 0)(stockDone)
	s.hold(seat, "alice", 1, time.Hour)(stockShort(1, 0))
	s.confirm("alice")(stockUnknown)
}

func testStockIsSoldOnce(s *stockScene) {
	s.supply(seat, 1)(stockDone)
	s.hold(seat, "alice", 1, time.Hour)(stockDone)
	s.hold(seat, "bob", 1, time.Hour)(stockShort(1, 0))
	s.has(seat, 1, 1, 0)
	s.confirm("alice")(stockDone)
	s.has(seat, 1, 0, 1)
	s.hold(seat, "bob", 1, time.Hour)(stockShort(1, 0))
	s.confirm("bob")(stockUnknown)
}

func testStockRepeatingConverges(s *stockScene) {
	s.supply(seat, 10)(stockDone)
	for range 3 {
		s.hold(seat, "r", 3, time.Hour)(stockDone)
		s.has(seat, 10, 3, 0)
	}
	for range 3 {
		s.confirm("r")(stockDone)
		s.hold(seat, "r", 3, time.Hour)(stockDone)
		s.has(seat, 10, 0, 3)
	}
	s.hold(seat, "x", 2, time.Hour)(stockDone)
	for range 3 {
		s.cancel("x")(stockDone)
		s.has(seat, 10, 0, 3)
	}
	s.supply(seat, 3)(stockDone)
	s.hold(seat, "r", 3, time.Hour)(stockDone) // a repetition, although everything is sold
}

func testStockReservationIsReused(s *stockScene) {
	s.supply(seat, 10)(stockDone)
	s.supply("other", 10)(stockDone)
	s.hold(seat, "r", 3, time.Hour)(stockDone)
	s.hold(seat, "r", 4, time.Hour)(stockOther)
	s.hold(seat, "r", 11, time.Hour)(stockOther)
	s.has(seat, 10, 3, 0)
	s.cancel("r")(stockDone)
	s.hold(seat, "r", 4, time.Hour)(stockOther)
	s.hold("other", "r", 4, time.Hour)(stockDone) // each item has its own ids
	s.has(seat, 10, 0, 0)
}

func testStockSettledStaysSo(s *stockScene) {
	s.supply(seat, 5)(stockDone)
	s.hold(seat, "c", 1, time.Hour)(stockDone)
	s.confirm("c")(stockDone)
	s.cancel("c")(stockSettled(driver.StockConfirmed))
	s.hold(seat, "x", 1, time.Hour)(stockDone)
	s.cancel("x")(stockDone)
	s.confirm("x")(stockSettled(driver.StockCancelled))
	s.hold(seat, "x", 1, time.Hour)(stockSettled(driver.StockCancelled))
	s.has(seat, 5, 0, 1)
}

// testStockExpires checks that holds expire without a background process.
func testStockExpires(s *stockScene) {
	s.supply(seat, 1)(stockDone)
	s.hold(seat, "slow", 1, brief)(stockDone)
	s.lapse(0)
	s.hold(seat, "slow", 1, time.Hour)(stockGone)
	s.hold(seat, "quick", 1, time.Hour)(stockDone)
	s.has(seat, 1, 1, 0)
	for range 2 {
		s.confirm("slow")(stockGone)
		s.cancel("slow")(stockDone)
		s.hold(seat, "slow", 1, time.Hour)(stockGone)
		s.has(seat, 1, 1, 0)
	}
	s.confirm("quick")(stockDone)
	s.has(seat, 1, 0, 1)
}

func testStockReclaimsOnlyAsNeeded(s *stockScene) {
	s.supply(seat, 10)(stockDone)
	for i, id := range []string{"first", "second", "third"} {
		s.hold(seat, id, 3, brief+time.Duration(i)*brief/4)(stockDone)
	}
	s.lapse(0)
	s.hold(seat, "all", 11, time.Hour)(stockShort(11, 10))
	s.hold(seat, "new", 5, time.Hour)(stockDone) // 1 was free, and 4 are from the first two
	s.confirm("first")(stockGone)
	s.confirm("second")(stockGone)
	s.confirm("third")(stockDone)
	s.has(seat, 10, 5, 3)
}

func testStockLateConfirm(s *stockScene) {
	s.supply(seat, 1)(stockDone)
	s.hold(seat, "late", 1, brief)(stockDone)
	s.lapse(0)
	s.confirm("late")(stockDone)
	s.has(seat, 1, 0, 1)
	s.hold(seat, "later", 1, time.Hour)(stockShort(1, 0))
	s.supply(seat, 2)(stockDone)
	s.hold(seat, "cancelled", 1, brief)(stockDone)
	s.lapse(0)
	s.cancel("cancelled")(stockDone)
	s.has(seat, 2, 0, 1)
}

func testStockAdjustsOnce(s *stockScene) {
	s.supply(seat, 100)(stockDone)
	take := driver.StockAdjustment{Item: seat, Operation: "one", Delta: -70}
	for range 3 {
		s.adjust(take)(stockDone)
		s.has(seat, 30, 0, 0)
	}
	take.Delta = 70
	s.adjust(take)(stockOther)
	take.Operation, take.Delta = "two", -31
	for range 2 { // a refusal is not recorded
		s.adjust(take)(stockShort(31, 30))
	}
	take.Delta, take.Floor = -30, 1
	s.adjust(take)(stockShort(31, 30))
	s.hold(seat, "r", 30, brief)(stockDone)
	take.Floor = 0
	s.lapse(0)
	s.adjust(take)(stockDone) // takes units of expired holds
	s.confirm("r")(stockGone)
	s.has(seat, 0, 0, 0)
	for range 3 {
		s.adjust(driver.StockAdjustment{Item: seat, Operation: "three", Delta: 5})(stockDone)
		s.adjust(driver.StockAdjustment{Item: seat, Operation: "four", Delta: -1})(stockDone)
		s.has(seat, 4, 0, 0)
	}
}

func testStockSupply(s *stockScene) {
	s.supply(seat, 10)(stockDone)
	s.hold(seat, "sold", 2, time.Hour)(stockDone)
	s.confirm("sold")(stockDone)
	s.hold(seat, "held", 4, time.Hour)(stockDone)
	s.supply(seat, 6)(stockDone)
	s.supply(seat, 1)(stockShort(5, 0))
	s.has(seat, 6, 4, 2)
	s.cancel("held")(stockDone)
	s.hold(seat, "late", 4, brief)(stockDone)
	s.lapse(0)
	s.supply(seat, 2)(stockDone)
	s.has(seat, 2, 0, 2)
	s.supply(seat, 0)(stockShort(2, 0))
}

// testStockNumbersAreExact checks numbers up to the highest that a float represents exactly.
func testStockNumbersAreExact(s *stockScene) {
	const all = int64(driver.MaxQuantity)
	s.supply(seat, all)(stockDone)
	s.hold(seat, "most", all-1, time.Hour)(stockDone)
	s.hold(seat, "two", 2, time.Hour)(stockShort(2, 1))
	s.confirm("most")(stockDone)
	s.has(seat, all, 0, all-1)
	s.hold(seat, "last", 1, time.Hour)(stockDone)
	s.has(seat, all, 1, all-1)
	s.adjust(driver.StockAdjustment{Item: seat, Operation: "o", Delta: 1})(driver.StockAnswer{Outcome: driver.StockFull})
	s.adjust(driver.StockAdjustment{Item: seat, Operation: "o", Delta: all})(driver.StockAnswer{Outcome: driver.StockFull})
	s.adjust(driver.StockAdjustment{Item: seat, Operation: "o", Delta: -all})(stockShort(all, 0))
	s.has(seat, all, 1, all-1)
}

func testStockNamesAreData(s *stockScene) {
	taken := s.eachName(func(_ int, name string) error {
		_, err := s.store.Supply(s.Context(), name, 2)
		return err
	})
	for _, name := range taken {
		s.hold(name, name, 1, time.Hour)(stockDone)
		s.adjust(driver.StockAdjustment{Item: name, Operation: name, Delta: 1})(stockDone)
	}
	for _, name := range taken {
		s.has(name, 3, 1, 0)
		s.settle(name, name, driver.StockConfirmed)(stockDone)
	}
}

func testStockImpossibleRequests(s *stockScene) {
	s.supply(seat, 5)(stockDone)
	ctx := s.Context()
	held := func(item, id string, n int64, ttl time.Duration) error {
		_, err := s.store.Hold(ctx, driver.StockHold{Item: item, Reservation: id, N: n, TTL: ttl})
		return err
	}
	adjusted := func(a driver.StockAdjustment) error { _, err := s.store.Adjust(ctx, a); return err }
	settled := func(item, id string, to driver.StockState) error {
		_, err := s.store.Settle(ctx, item, id, to)
		return err
	}
	supplied := func(item string, n int64) error { _, err := s.store.Supply(ctx, item, n); return err }
	for _, bad := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		_, err := s.store.Level(ctx, bad)
		for _, err := range []error{
			err, held(bad, "r", 1, time.Hour), held(seat, bad, 1, time.Hour), supplied(bad, 1),
			settled(bad, "r", driver.StockCancelled), settled(seat, bad, driver.StockCancelled),
			adjusted(driver.StockAdjustment{Item: bad, Operation: "o", Delta: 1}),
			adjusted(driver.StockAdjustment{Item: seat, Operation: bad, Delta: 1}),
		} {
			s.mustFail(err, interlock.Bug, interlock.ErrName)
		}
	}
	for _, err := range []error{
		held(seat, "r", 0, time.Hour), held(seat, "r", -1, time.Hour), held(seat, "r", driver.MaxQuantity+1, time.Hour),
		held(seat, "r", 1, 0), held(seat, "r", 1, time.Microsecond), held(seat, "r", 1, -time.Hour),
		supplied(seat, -1), supplied(seat, driver.MaxQuantity+1),
		settled(seat, "r", driver.StockHeld), settled(seat, "r", driver.StockExpired), settled(seat, "r", "lost"),
		adjusted(driver.StockAdjustment{Item: seat, Operation: "o"}),
		adjusted(driver.StockAdjustment{Item: seat, Operation: "o", Delta: math.MinInt64}),
		adjusted(driver.StockAdjustment{Item: seat, Operation: "o", Delta: driver.MaxQuantity + 1}),
		adjusted(driver.StockAdjustment{Item: seat, Operation: "o", Delta: -1, Floor: -1}),
		adjusted(driver.StockAdjustment{Item: seat, Operation: "o", Delta: -1, Floor: driver.MaxQuantity}),
	} {
		s.mustFail(err, interlock.Bug, nil)
	}
	s.has(seat, 5, 0, 0)
}
