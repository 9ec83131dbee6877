package stock_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestTableSuite runs the suite of driver.Stock on tables. It allows no Retryable error: calls of
// one item cause no deadlock.
func TestTableSuite(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		drivertest.RunStock(t, drivertest.StockHarness{
			Start: func(t *testing.T, _ bool) drivertest.StockBackend {
				return inTable{newWorld(t, open(t)), make(chan struct{}, atOnce)}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		})
	})
}

// inTable is a driver.Stock that makes each call in its own transaction. A reservation has one line.
type inTable struct {
	world
	running chan struct{} // as many transactions at once as it has room for
}

func (s inTable) Open(*testing.T) (driver.Stock, error) { return s, nil }
func (inTable) Faults() drivertest.Faults               { return nil }

// Beside is where the suite looks at the result.
func (s inTable) Beside(t *testing.T) (driver.Stock, error) {
	s.sound(t)
	return s, nil
}

func (s inTable) Supply(ctx context.Context, item string, n int64) (driver.StockAnswer, error) {
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error { return s.Set(ctx, db, item, n) })
}

func (s inTable) Adjust(ctx context.Context, a driver.StockAdjustment) (driver.StockAnswer, error) {
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error { return s.Table.Adjust(ctx, db, a) })
}

func (s inTable) Hold(ctx context.Context, h driver.StockHold) (driver.StockAnswer, error) {
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error {
		return s.Table.Hold(ctx, db, idOf(h.Item, h.Reservation), h.TTL, stock.Line{Item: h.Item, N: h.N})
	})
}

func (s inTable) Settle(ctx context.Context, item, reservation string, to driver.StockState) (driver.StockAnswer, error) {
	id := idOf(item, reservation)
	return s.call(ctx, func(ctx context.Context, db driver.SQL) error {
		switch to {
		case driver.StockConfirmed:
			return s.Confirm(ctx, db, id)
		case driver.StockCancelled:
			return s.Cancel(ctx, db, id)
		}
		return &interlock.Error{Op: "settle", Kind: interlock.Bug, Err: fmt.Errorf("to %q", to)}
	})
}

func (s inTable) Level(ctx context.Context, item string) (level driver.StockLevel, err error) {
	err = s.Try(ctx, func(ctx context.Context, db driver.SQL) error {
		level, err = s.Show(ctx, db, item)
		return err
	})
	return level, err
}

// idOf returns the id of a reservation of an item: those of a table are shared by all items. It is
// empty if either name is invalid.
func idOf(item, reservation string) string {
	for _, name := range []string{item, reservation} {
		if driver.CheckName("", "", name, driver.MaxName) != nil {
			return ""
		}
	}
	if id := item + "/" + reservation; len(id) <= driver.MaxName {
		return id
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(item+"/"+reservation)))
}

// call returns the outcome of a transaction.
func (s inTable) call(ctx context.Context, fn call) (driver.StockAnswer, error) {
	s.running <- struct{}{}
	err := s.Try(ctx, fn)
	<-s.running
	var short *stock.ShortError
	var reused *stock.ReusedError
	var settled *stock.SettledError
	var unknown *stock.UnknownError
	switch {
	case err == nil:
		return driver.StockAnswer{Outcome: driver.StockDone}, nil
	case errors.As(err, &short):
		return driver.StockAnswer{Outcome: driver.StockShort, Want: short.Want, Available: short.Available}, nil
	case errors.As(err, &reused):
		return driver.StockAnswer{Outcome: driver.StockOther}, nil
	case errors.As(err, &settled) && settled.State == driver.StockExpired:
		return driver.StockAnswer{Outcome: driver.StockGone, State: settled.State}, nil
	case settled != nil:
		return driver.StockAnswer{Outcome: driver.StockSettled, State: settled.State}, nil
	case errors.As(err, &unknown):
		return driver.StockAnswer{Outcome: driver.StockUnknown}, nil
	case strings.Contains(err.Error(), "the supply would exceed"):
		return driver.StockAnswer{Outcome: driver.StockFull}, nil
	}
	return driver.StockAnswer{}, err
}
