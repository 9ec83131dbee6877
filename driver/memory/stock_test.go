package memory_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestStock(t *testing.T) {
	drivertest.RunStock(t, drivertest.StockHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.StockBackend { return depot{memory.NewStock()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// depot is stock in memory.
type depot struct{ stock *memory.Stock }

func (d depot) Open(*testing.T) (driver.Stock, error) { return d.stock, nil }

func (d depot) Beside(*testing.T) (driver.Stock, error) { return d.stock, nil }

func (d depot) Faults() drivertest.Faults { return nil }

// The answers of a driver. Users write against guard/stock.
func ExampleStock() {
	ctx, stock := context.Background(), memory.NewStock()
	_, _ = stock.Supply(ctx, "seat/12A", 1)
	for _, buyer := range []string{"alice", "bob"} {
		a, err := stock.Hold(ctx, driver.StockHold{Item: "seat/12A", Reservation: buyer, N: 1, TTL: time.Minute})
		fmt.Println(buyer, a.Outcome == driver.StockDone, err)
	}
	// Output:
	// alice true <nil>
	// bob false <nil>
}
