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

// TestRaces runs races of holds that expire on each database, with a connection for each concurrent
// buyer. No transaction may be undone. The suite of driver.Stock has the other races.
func TestRaces(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, race := range map[string]func(*testing.T, world){"turmoil": raceTurmoil, "baskets": raceBaskets} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, open(t))
				if w.Dialect == driver.Postgres {
					many, closed, err := databases.Connect(t.Context(), w.Client, w.URL+fmt.Sprintf("&pool_max_conns=%d", atOnce))
					ok(t, err)
					t.Cleanup(closed)
					w.BeginnerAt = many
				}
				race(t, w)
				w.sound(t)
			})
		}
	}, databases.Pgx, databases.Maria)
}

// atOnce is the number of concurrent buyers.
const atOnce = 16

// crowd runs fn for each of n buyers, some of them at a time.
func crowd(n int, fn func(i int, r *rand.Rand)) {
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

// raceTurmoil: buyers hold for a moment, are late, cancel, and make two calls at once.
// The stock agrees with the last answer of each.
func raceTurmoil(t *testing.T, w world) {
	w.set(t, "x", 60)
	var bought, late atomic.Int64
	crowd(500, func(i int, r *rand.Rand) {
		id, n, ttl := fmt.Sprint("buyer/", i), 1+r.Int64N(3), time.Millisecond*time.Duration(1+r.IntN(15))
		if err := w.hold(id, ttl, stock.Line{Item: "x", N: n}); err != nil {
			if short, found := errors.AsType[*stock.ShortError](err); !found || short.Available >= short.Want {
				t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
			}
			return
		}
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // the buyer thinks
		confirm := r.IntN(8) == 0
		cancel := !confirm && r.IntN(2) == 0 || confirm && r.IntN(2) == 0
		var both sync.WaitGroup
		var confirmed, cancelled error
		if confirm {
			both.Go(func() { confirmed = w.confirm(id) })
		}
		if cancel {
			both.Go(func() { cancelled = w.cancel(id) })
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
	if level := w.level(t, "x"); level.Sold != bought.Load() || level.Available() < 0 {
		t.Errorf("%d units were bought: %+v", bought.Load(), level)
	}
	if bought.Load() == 0 {
		t.Error("nothing was bought: this shows nothing")
	}
	t.Logf("%d units were bought, %d came too late", bought.Load(), late.Load())
}

// raceBaskets: buyers hold several items each, in any order: there is no deadlock, and
// no buyer gets a part of the order.
func raceBaskets(t *testing.T, w world) {
	items := []string{"a", "b", "c", "d"}
	for _, item := range items {
		w.set(t, item, 40)
	}
	var bought atomic.Int64
	crowd(200, func(i int, r *rand.Rand) {
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
		case !errors.As(err, &short) && !errors.As(err, &settled):
			t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
		}
	})
	if bought.Load() == 0 {
		t.Error("nobody had anything: this shows nothing")
	}
}
