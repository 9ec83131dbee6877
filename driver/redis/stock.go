package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var (
	stockSupplyScript = newStockScript("stock_supply")
	stockAdjustScript = newStockScript("stock_adjust")
	stockHoldScript   = newStockScript("stock_hold")
	stockSettleScript = newStockScript("stock_settle")
	stockLevelScript  = newStockScript("stock_level")
)

func newStockScript(name string) *script {
	return newScript(lua("stock", name).after(fmt.Sprintf("local MAX = %d\n", int64(driver.MaxQuantity))))
}

// DefaultStockKeep is the default of StockOptions.Keep.
const DefaultStockKeep = 7 * 24 * time.Hour

// StockOptions of a [Stock]; nil and the zero value work.
type StockOptions struct {
	// Prefix is put before the names of items.
	Prefix string
	// Keep is how long a reservation is remembered after its expiry time, and an
	// operation after it was applied. After that the same id is a new one. 0 means
	// [DefaultStockKeep]. Negative is taken as 0.
	Keep time.Duration
}

// Stock keeps items and their reservations in Redis; each call is one script. It
// implements driver.Stock. An item is five keys of one hash slot,
// interlock:{TAG}:stock…:PREFIX+ITEM, which never expire; each call forgets up to
// ten old ids of its item. A crash without appendfsync always, or a failover to a
// replica, may lose the latest sales: keep a unique constraint behind it where the
// units are used.
type Stock struct {
	conn    *conn
	options StockOptions
}

var _ driver.Stock = (*Stock)(nil)

// NewStock returns a stock; it sends nothing. The caller closes the client.
func NewStock(client rueidis.Client, o *StockOptions) *Stock {
	s := &Stock{conn: newGuardConn(client, keepsMarks)}
	if o != nil {
		s.options = *o
	}
	if s.options.Keep <= 0 {
		s.options.Keep = DefaultStockKeep
	}
	return s
}

// Supply sets the supply of an item; see driver.Stock.
func (s *Stock) Supply(ctx context.Context, item string, n int64) (driver.StockAnswer, error) {
	asked := request{op: "set supply", name: item}
	if n < 0 || n > driver.MaxQuantity {
		return driver.StockAnswer{}, problem(asked, interlock.Bug, fmt.Errorf("a supply of %d", n))
	}
	return s.ask(ctx, asked, stockSupplyScript, "", strconv.FormatInt(n, 10))
}

// Adjust applies an operation once; see driver.Stock.
func (s *Stock) Adjust(ctx context.Context, a driver.StockAdjustment) (driver.StockAnswer, error) {
	asked := request{op: "adjust stock", name: a.Item}
	if err := a.Check(); err != nil {
		return driver.StockAnswer{}, problem(asked, interlock.Bug, err)
	}
	return s.ask(ctx, asked, stockAdjustScript, a.Operation, a.Operation,
		strconv.FormatInt(a.Delta, 10), strconv.FormatInt(a.Take(), 10), milliseconds(s.options.Keep))
}

// Hold reserves units; see driver.Stock. Times are in milliseconds.
func (s *Stock) Hold(ctx context.Context, h driver.StockHold) (driver.StockAnswer, error) {
	asked := request{op: "hold", name: h.Item}
	if err := h.Check(); err != nil {
		return driver.StockAnswer{}, problem(asked, interlock.Bug, err)
	}
	return s.ask(ctx, asked, stockHoldScript, h.Reservation, h.Reservation,
		strconv.FormatInt(h.N, 10), milliseconds(h.TTL), milliseconds(s.options.Keep))
}

// Settle confirms or cancels a reservation; see driver.Stock.
func (s *Stock) Settle(ctx context.Context, item, reservation string, to driver.StockState) (driver.StockAnswer, error) {
	asked := request{op: "settle reservation", name: item}
	if to != driver.StockConfirmed && to != driver.StockCancelled {
		return driver.StockAnswer{}, problem(asked, interlock.Bug, fmt.Errorf("it cannot become %q", to))
	}
	return s.ask(ctx, asked, stockSettleScript, reservation, reservation, string(to))
}

// Level returns the level of an item; see driver.Stock.
func (s *Stock) Level(ctx context.Context, item string) (driver.StockLevel, error) {
	asked := request{op: "show stock", name: item, harmless: true}
	words, err := s.run(ctx, asked, stockLevelScript)
	if err != nil {
		return driver.StockLevel{}, err
	}
	n, err := numbers(words)
	if err != nil || len(n) != 3 {
		return driver.StockLevel{}, problem(asked, interlock.Definite, errReply)
	}
	return driver.StockLevel{Supply: n[0], Held: n[1], Sold: n[2]}, nil
}

// ask runs a script and parses its answer. id is checked with the item, unless the
// script sets the supply, which has none.
func (s *Stock) ask(ctx context.Context, asked request, of *script, id string, args ...string) (driver.StockAnswer, error) {
	if of != stockSupplyScript {
		if err := checkName(id, ""); err != nil {
			return driver.StockAnswer{}, err
		}
	}
	words, err := s.run(ctx, asked, of, args...)
	if err != nil {
		return driver.StockAnswer{}, err
	}
	answer, ok := stockAnswer(words)
	if !ok {
		return driver.StockAnswer{}, uncertain(asked, errReply)
	}
	return answer, nil
}

// run runs a script on an item.
func (s *Stock) run(ctx context.Context, asked request, of *script, args ...string) ([]string, error) {
	if err := checkName(asked.name, ""); err != nil {
		return nil, err
	}
	return s.conn.texts(ctx, asked, of, batch{keys: s.keys(asked.name), args: args})
}

// keys returns those of an item, as stock.lua describes them.
func (s *Stock) keys(item string) []string {
	own := ownKeys(s.options.Prefix + item)
	keys := make([]string, 0, 5)
	for _, kind := range []string{"stock:", "stock-reserved:", "stock-due:", "stock-done:", "stock-old:"} {
		keys = append(keys, own+kind+s.options.Prefix+item)
	}
	return keys
}

var stockOutcomes = map[string]driver.StockOutcome{
	"done": driver.StockDone, "short": driver.StockShort, "other": driver.StockOther, "gone": driver.StockGone,
	"settled": driver.StockSettled, "unknown": driver.StockUnknown, "full": driver.StockFull,
}

// stockAnswer parses a script's answer: an outcome, and a state or two numbers.
func stockAnswer(words []string) (a driver.StockAnswer, ok bool) {
	a.Outcome = stockOutcomes[words[0]]
	switch {
	case a.Outcome == driver.StockShort:
		n, err := numbers(words)
		if err != nil || len(n) != 2 {
			return a, false
		}
		a.Want, a.Available = n[0], n[1]
	case len(words) == 2:
		a.State = driver.StockState(words[1])
	}
	return a, a.Outcome != 0
}

// numbers parses all words but the first.
func numbers(words []string) (n []int64, err error) {
	for _, w := range words[1:] {
		parsed, err := driver.ParseInt(w)
		if err != nil {
			return nil, err
		}
		n = append(n, parsed)
	}
	return n, nil
}
