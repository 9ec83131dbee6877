package stock_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// shop has the actions of buyers.
type shop struct {
	hold            func(id string, ttl time.Duration, line stock.Line) error
	confirm, cancel func(item, id string) error
	adjust          func(stock.Adjustment) error
	level           func(item string) driver.StockLevel
	sound           func()
	undone          *atomic.Int64 // how many calls the database undid, Retryable
}

// shopOf runs each call in its own transaction, and again if that was undone. No other
// error may occur.
func shopOf(t *testing.T, w world) shop {
	s := shop{undone: &atomic.Int64{}, level: func(item string) driver.StockLevel { return w.level(t, item) }, sound: func() { w.sound(t) }}
	insist := func(try func() error) error {
		for {
			err := try()
			if interlock.Kind(err) != interlock.Retryable || err == nil {
				return err
			}
			s.undone.Add(1)
		}
	}
	s.hold = func(id string, ttl time.Duration, line stock.Line) error {
		return insist(func() error { return w.hold(id, ttl, line) })
	}
	s.confirm = func(_, id string) error { return insist(func() error { return w.confirm(id) }) }
	s.cancel = func(_, id string) error { return insist(func() error { return w.cancel(id) }) }
	s.adjust = func(a stock.Adjustment) error { return insist(func() error { return w.adjust(a) }) }
	return s
}

// TestRaces runs each race on each database, with a connection for each concurrent
// buyer. The suite of driver.Stock runs races on stores.
func TestRaces(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, race := range races {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, open(t))
				if w.Dialect == driver.Postgres {
					many, closed, err := databases.Connect(t.Context(), w.Client, w.URL+fmt.Sprintf("&pool_max_conns=%d", atOnce))
					ok(t, err)
					t.Cleanup(closed)
					w.BeginnerAt = many
				}
				w.set(t, "x", race.units)
				race.run(t, shopOf(t, w))
			})
		}
		t.Run("baskets", func(t *testing.T) { raceBaskets(t, newWorld(t, open(t))) })
	}, databases.Pgx, databases.Maria)
}

// races compete for the units of item x.
var races = map[string]struct {
	units int64
	run   func(*testing.T, shop)
}{
	"one seat":           {1, raceCrowd},
	"stock of 100":       {100, raceCrowd},
	"turmoil":            {60, raceTurmoil},
	"deltas are applied": {50, raceDeltas},
}

// crowd runs fn for each of n buyers, some of them at a time.
func crowd(n, atOnce int, fn func(i int, r *rand.Rand)) {
	next := make(chan int)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range next {
				fn(i, rand.New(rand.NewPCG(5, uint64(i))))
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

const (
	buyers = 1000
	atOnce = 32
)

// raceCrowd has a thousand buyers compete for all units, each of them several times.
// Exactly all units are sold, and only buyers who are too late get an error.
func raceCrowd(t *testing.T, s shop) {
	units := s.level("x").Supply
	var sold, refused atomic.Int64
	began := time.Now()
	crowd(buyers, atOnce, func(i int, r *rand.Rand) {
		id := fmt.Sprint("buyer/", i)
		for range 1 + r.IntN(2) { // as after a lost answer
			err := s.hold(id, time.Hour, one("x"))
			if short, found := errors.AsType[*stock.ShortError](err); found && short.Available == 0 {
				refused.Add(1)
				return
			}
			if err != nil {
				t.Errorf("hold: %v (%v)", err, interlock.Kind(err))
			}
		}
		for range 1 + r.IntN(2) {
			if err := s.confirm("x", id); err != nil {
				t.Errorf("confirm: %v (%v)", err, interlock.Kind(err))
			}
		}
		sold.Add(1)
	})
	t.Logf("%d buyers in %v", buyers, time.Since(began).Round(time.Millisecond))
	if sold.Load() != units || refused.Load() != buyers-units {
		t.Errorf("%d of %d were sold, %d were refused", sold.Load(), units, refused.Load())
	}
	if got := s.level("x"); got != (driver.StockLevel{Supply: units, Sold: units}) {
		t.Errorf("%+v", got)
	}
	s.undisturbed(t)
}

// undisturbed requires that one hot row caused no deadlock.
func (s shop) undisturbed(t *testing.T) {
	t.Helper()
	if n := s.undone.Load(); n > 0 {
		t.Errorf("%d transactions were undone", n)
	}
	s.sound()
}

// wantTooFew requires that a failed call found too few units.
func wantTooFew(t *testing.T, id string, err error) {
	t.Helper()
	if short, found := errors.AsType[*stock.ShortError](err); !found || short.Available >= short.Want {
		t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
	}
}

// raceTurmoil: buyers hold for a moment, are late, cancel, and make two calls at once.
// The stock agrees with the last answer of each.
func raceTurmoil(t *testing.T, s shop) {
	var bought, late atomic.Int64
	crowd(500, atOnce/2, func(i int, r *rand.Rand) {
		id, n, ttl := fmt.Sprint("buyer/", i), 1+r.Int64N(3), time.Millisecond*time.Duration(1+r.IntN(15))
		if err := s.hold(id, ttl, stock.Line{Item: "x", N: n}); err != nil {
			wantTooFew(t, id, err)
			return
		}
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // the buyer thinks
		confirm := r.IntN(8) == 0
		cancel := !confirm && r.IntN(2) == 0 || confirm && r.IntN(2) == 0
		var both sync.WaitGroup
		var confirmed, cancelled error
		if confirm {
			both.Go(func() { confirmed = s.confirm("x", id) })
		}
		if cancel {
			both.Go(func() { cancelled = s.cancel("x", id) })
		}
		both.Wait()
		var no *stock.SettledError
		switch {
		case confirm && confirmed == nil:
			if cancel && (!errors.As(cancelled, &no) || no.State != driver.StockConfirmed) {
				t.Errorf("%s is confirmed, and cancelled: %v", id, cancelled)
			}
			bought.Add(n)
		case confirm && !errors.As(confirmed, &no), cancelled != nil:
			t.Errorf("%s: confirmed %v, cancelled %v", id, confirmed, cancelled)
		case confirm && no.State == driver.StockExpired:
			late.Add(1)
		case confirm && !cancel:
			t.Errorf("%s: %v, and nobody cancelled it", id, confirmed)
		}
	})
	if level := s.level("x"); level.Sold != bought.Load() || level.Available() < 0 {
		t.Errorf("%d units were bought: %+v", bought.Load(), level)
	}
	if bought.Load() == 0 {
		t.Error("nothing was bought: this shows nothing")
	}
	t.Logf("%d units were bought, %d came too late", bought.Load(), late.Load())
	s.undisturbed(t)
}

// raceDeltas applies each operation by several concurrent callers, some of which request
// too much.
func raceDeltas(t *testing.T, s shop) {
	const operations, callers = 100, 4
	var applied [operations]atomic.Int64
	crowd(operations*callers, atOnce, func(i int, _ *rand.Rand) {
		op := i / callers
		delta := int64(op%7-3)*2 - 1
		err := s.adjust(stock.Adjustment{Item: "x", Operation: fmt.Sprint(op), Delta: delta})
		if err == nil {
			applied[op].Store(delta)
			return
		}
		wantTooFew(t, fmt.Sprint("operation ", op), err)
	})
	want := int64(50)
	for op := range applied {
		want += applied[op].Load()
	}
	if got := s.level("x"); got.Supply != want || want < 0 {
		t.Errorf("%+v, want %d", got, want)
	}
	s.undisturbed(t)
}

// raceBaskets: buyers hold several items each, in any order: there is no deadlock, and
// no buyer gets a part of the order.
func raceBaskets(t *testing.T, w world) {
	items := []string{"a", "b", "c", "d"}
	for _, item := range items {
		w.set(t, item, 40)
	}
	s := shopOf(t, w)
	var bought atomic.Int64
	crowd(200, atOnce/2, func(i int, r *rand.Rand) {
		var lines []stock.Line
		for _, at := range r.Perm(len(items))[:1+r.IntN(3)] {
			lines = append(lines, stock.Line{Item: items[at], N: 1 + r.Int64N(2)})
		}
		id := fmt.Sprint("basket/", i)
		ttl := []time.Duration{time.Hour, 2 * time.Millisecond}[r.IntN(2)]
		err := w.hold(id, ttl, lines...)
		if err == nil && r.IntN(3) > 0 {
			err = w.confirm(id)
		}
		var short *stock.ShortError
		var settled *stock.SettledError
		switch {
		case err == nil:
			bought.Add(1)
		case interlock.Kind(err) == interlock.Retryable:
			s.undone.Add(1)
		case !errors.As(err, &short) && !errors.As(err, &settled):
			t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
		}
	})
	if bought.Load() == 0 {
		t.Error("nobody had anything: this shows nothing")
	}
	s.undisturbed(t)
}
