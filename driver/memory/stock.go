package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Stock keeps items and their reservations in memory. It is the executable
// specification of driver.Stock: each call is one step under a mutex, by this
// process's clock. It removes no id. Use [NewStock]. It is safe for concurrent use.
type Stock struct {
	mu    sync.Mutex
	items map[string]*item
}

var _ driver.Stock = (*Stock)(nil)

// item is one item. Expired reservations count as held in level.
type item struct {
	level        driver.StockLevel
	reservations map[string]*reserved
	operations   map[string]int64
}

type reserved struct {
	n       int64
	state   driver.StockState
	expires time.Time
}

// NewStock returns an empty store.
func NewStock() *Stock { return &Stock{items: map[string]*item{}} }

// Supply sets the supply of an item; see driver.Stock.
func (s *Stock) Supply(ctx context.Context, name string, n int64) (driver.StockAnswer, error) {
	const op = "set supply"
	if n < 0 || n > driver.MaxQuantity {
		return driver.StockAnswer{}, fail.New(op, name, interlock.Bug, fmt.Errorf("a supply of %d", n))
	}
	return s.step(ctx, op, name, nil, func(i *item, now time.Time) driver.StockAnswer {
		if answer := i.room(i.level.Supply-n, now); answer.Outcome != driver.StockDone {
			return answer
		}
		i.level.Supply = n
		s.items[name] = i
		return driver.StockAnswer{Outcome: driver.StockDone}
	})
}

// Adjust applies an operation once; see driver.Stock.
func (s *Stock) Adjust(ctx context.Context, a driver.StockAdjustment) (driver.StockAnswer, error) {
	const op = "adjust stock"
	if err := a.Check(); err != nil {
		return driver.StockAnswer{}, fail.New(op, a.Item, interlock.Bug, err)
	}
	return s.step(ctx, op, a.Item, []string{a.Operation}, func(i *item, now time.Time) driver.StockAnswer {
		delta, done := i.operations[a.Operation]
		switch {
		case done && delta != a.Delta:
			return driver.StockAnswer{Outcome: driver.StockOther}
		case done:
			return driver.StockAnswer{Outcome: driver.StockDone}
		case s.items[a.Item] == nil:
			return driver.StockAnswer{Outcome: driver.StockUnknown}
		case i.level.Supply+a.Delta > driver.MaxQuantity:
			return driver.StockAnswer{Outcome: driver.StockFull}
		}
		if answer := i.room(a.Take(), now); answer.Outcome != driver.StockDone {
			return answer
		}
		i.level.Supply += a.Delta
		i.operations[a.Operation] = a.Delta
		return driver.StockAnswer{Outcome: driver.StockDone}
	})
}

// Hold takes units for a reservation; see driver.Stock.
func (s *Stock) Hold(ctx context.Context, h driver.StockHold) (driver.StockAnswer, error) {
	const op = "hold"
	if err := h.Check(); err != nil {
		return driver.StockAnswer{}, fail.New(op, h.Item, interlock.Bug, err)
	}
	return s.step(ctx, op, h.Item, []string{h.Reservation}, func(i *item, now time.Time) driver.StockAnswer {
		if r := i.reservations[h.Reservation]; r != nil {
			return r.again(h.N, now)
		}
		if s.items[h.Item] == nil {
			return driver.StockAnswer{Outcome: driver.StockUnknown}
		}
		if answer := i.room(h.N, now); answer.Outcome != driver.StockDone {
			return answer
		}
		i.level.Held += h.N
		i.reservations[h.Reservation] = &reserved{n: h.N, state: driver.StockHeld, expires: now.Add(h.TTL)}
		return driver.StockAnswer{Outcome: driver.StockDone}
	})
}

// Settle confirms or cancels a reservation; see driver.Stock.
func (s *Stock) Settle(ctx context.Context, name, reservation string, to driver.StockState) (driver.StockAnswer, error) {
	const op = "settle reservation"
	if to != driver.StockConfirmed && to != driver.StockCancelled {
		return driver.StockAnswer{}, fail.New(op, name, interlock.Bug, fmt.Errorf("it cannot become %q", to))
	}
	return s.step(ctx, op, name, []string{reservation}, func(i *item, _ time.Time) driver.StockAnswer {
		r := i.reservations[reservation]
		if r == nil && to == driver.StockConfirmed {
			return driver.StockAnswer{Outcome: driver.StockUnknown}
		}
		if r == nil {
			return driver.StockAnswer{Outcome: driver.StockDone}
		}
		outcome := r.state.Settle(to)
		if outcome != driver.StockDone || r.state != driver.StockHeld {
			return driver.StockAnswer{Outcome: outcome, State: r.state}
		}
		i.level.Held -= r.n
		if to == driver.StockConfirmed {
			i.level.Sold += r.n
		}
		r.state = to
		return driver.StockAnswer{Outcome: outcome, State: to}
	})
}

// Level returns the level of an item; see driver.Stock.
func (s *Stock) Level(ctx context.Context, name string) (level driver.StockLevel, err error) {
	_, err = s.step(ctx, "show stock", name, nil, func(i *item, now time.Time) driver.StockAnswer {
		level = i.level
		for _, r := range i.expired(now) {
			level.Held -= r.n
		}
		return driver.StockAnswer{}
	})
	return level, err
}

// step runs one step on an item, or on an empty one that is not stored.
func (s *Stock) step(ctx context.Context, op, name string, ids []string, fn func(*item, time.Time) driver.StockAnswer) (driver.StockAnswer, error) {
	for _, asked := range append(ids, name) {
		if err := asking(ctx, op, asked); err != nil {
			return driver.StockAnswer{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.items[name]
	if i == nil {
		i = &item{reservations: map[string]*reserved{}, operations: map[string]int64{}}
	}
	return fn(i, time.Now()), nil
}

// room makes n units available by ending expired holds, or changes nothing if they
// are not enough.
func (i *item) room(n int64, now time.Time) driver.StockAnswer {
	available, due := i.level.Available(), i.expired(now)
	given := 0
	for ; available < n && given < len(due); given++ {
		available += due[given].n
	}
	if available < n {
		return driver.StockAnswer{Outcome: driver.StockShort, Want: n, Available: available}
	}
	for _, r := range due[:given] {
		r.state = driver.StockExpired
		i.level.Held -= r.n
	}
	return driver.StockAnswer{Outcome: driver.StockDone}
}

// expired lists the expired holds, the earliest first.
func (i *item) expired(now time.Time) (due []*reserved) {
	for _, r := range i.reservations {
		if r.state == driver.StockHeld && !r.expires.After(now) {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *reserved) int {
		return cmp.Or(a.expires.Compare(b.expires), cmp.Compare(a.n, b.n))
	})
	return due
}

// again answers a Hold for an existing reservation.
func (r *reserved) again(n int64, now time.Time) driver.StockAnswer {
	switch {
	case r.n != n:
		return driver.StockAnswer{Outcome: driver.StockOther}
	case r.state == driver.StockExpired, r.state == driver.StockHeld && !r.expires.After(now):
		return driver.StockAnswer{Outcome: driver.StockGone, State: driver.StockExpired}
	case r.state == driver.StockCancelled:
		return driver.StockAnswer{Outcome: driver.StockSettled, State: r.state}
	}
	return driver.StockAnswer{Outcome: driver.StockDone, State: r.state}
}
