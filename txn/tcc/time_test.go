package tcc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestLate: a transaction whose tries took too long is not confirmed, although all hold.
func TestLate(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		want  error
	}{{49 * time.Second, nil}, {51 * time.Second, errLate}} {
		atHotel(t, 1, func(t *testing.T, hotel *venue) {
			hotel.bad = slowTry(c.takes)
			r := serve(t, nil, 1, &Options{Hold: time.Minute, Margin: 10 * time.Second, Timeout: time.Hour}, hotel)
			_, err := r.run(t.Context(), "1", hotel)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("after %v: %v", c.takes, err)
			}
			synctest.Wait()
			if got := hotel.state("1"); (got == "confirmed") != (c.want == nil) || got == "held" {
				t.Errorf("after %v it is %s", c.takes, got)
			}
		})
	}
}

// slowTry makes each try take a time, and ignores its context.
func slowTry(takes time.Duration) func(branch.Call) (before, after error) {
	return func(c branch.Call) (before, after error) {
		if c.Operation == branch.Try {
			time.Sleep(takes)
		}
		return nil, nil
	}
}

// TestTryNamesItsTimeout in the error of a try that took too long, whatever the client says.
func TestTryNamesItsTimeout(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		hotel.bad = func(c branch.Call) (before, after error) {
			if c.Operation == branch.Try {
				time.Sleep(1500 * time.Millisecond)
				return errors.New("rpc error: code = Canceled"), nil
			}
			return nil, nil
		}
		r := serve(t, nil, 1, &Options{Timeout: time.Second}, hotel)
		_, err := r.run(t.Context(), "1", hotel)
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if !strings.Contains(err.Error(), "the call took longer than 1s: rpc error") {
			t.Error(err)
		}
	})
}

// TestClockSet: if the wall clock is set forward past the time of the holds, nothing is
// confirmed; one that is set back does not extend the time.
func TestClockSet(t *testing.T) {
	for _, c := range []struct {
		by, takes time.Duration
		want      Decision
	}{{0, time.Second, Confirm}, {-time.Hour, time.Second, Confirm}, {-time.Hour, 55 * time.Second, Cancel}, {55 * time.Second, time.Second, Cancel}, {time.Hour, time.Second, Cancel}} {
		bubble(t, func(t *testing.T) {
			var mu sync.Mutex
			var offset time.Duration
			now := func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return time.Now().Round(0).Add(offset)
			}
			hotel := newVenue("hotel", 1)
			hotel.bad = func(call branch.Call) (before, after error) {
				if call.Operation == branch.Try {
					mu.Lock()
					offset = c.by
					mu.Unlock()
				}
				return slowTry(c.takes)(call)
			}
			r := idle(t, nil, &Options{Hold: time.Minute, Timeout: time.Hour}, now, hotel)
			r.serve(t, 1)
			o, _ := r.run(t.Context(), "1", hotel)
			if o.Decision != c.want {
				t.Errorf("set by %v, tried for %v: %s", c.by, c.takes, o.Decision)
			}
		})
	}
}

// TestSweeperAgainstDecider: participants ask at any time, early or late, while the decision
// is slow, and while it is unknown: released holds are never confirmed, and confirmed ones
// never released.
func TestSweeperAgainstDecider(t *testing.T) {
	ends := map[Decision]int{}
	for seed := range uint64(300) {
		bubble(t, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 7))
			upTo := func(d time.Duration) time.Duration { return time.Duration(dice.Int64N(int64(d))) }
			store := txntest.NewJournal()
			hotel, flight := newVenue("hotel", 1), newVenue("flight", 1)
			first, last := upTo(20*time.Second), upTo(60*time.Second)
			hotel.bad, flight.bad = slowTry(first), slowTry(last)
			before, after, lost := upTo(1500*time.Millisecond), upTo(2*time.Second), dice.IntN(3) == 0
			store.Fail = func(n int, a driver.Append) (error, error) {
				if n > 2 || a.Epoch != 0 {
					return nil, nil
				}
				time.Sleep(before) // in transit
				if lost {
					return nil, errNetwork
				}
				return nil, nil
			}
			r := serve(t, store, 1, &Options{Hold: time.Minute, Timeout: time.Hour}, hotel, flight)
			var work sync.WaitGroup
			var o Outcome
			var err error
			work.Go(func() { o, err = r.run(context.Background(), "1", hotel, flight) })
			// Around the expiry of the holds, or, with a clock that is ahead, around the
			// decision.
			at, early := 45*time.Second+upTo(30*time.Second), upTo(20*time.Second)
			if dice.IntN(2) == 0 {
				at, early = max(first, last, 2*time.Second)-2*time.Second+upTo(4*time.Second), time.Hour
			}
			work.Go(func() {
				time.Sleep(at)
				for _, v := range []*venue{hotel, flight} {
					v.mu.Lock()
					if h := v.holds["1"]; h != nil {
						h.until = h.until.Add(-early) // its clock is ahead
					}
					v.mu.Unlock()
					_ = v.sweep(context.Background(), r.Decide)
					time.Sleep(after)
				}
			})
			work.Wait()
			for range 5 { // an answer can take long
				time.Sleep(time.Minute)
				_ = hotel.sweep(context.Background(), r.Decide)
				_ = flight.sweep(context.Background(), r.Decide)
			}
			for _, v := range []*venue{hotel, flight} {
				v.rules(t)
				if got := v.state("1"); err == nil && got != "confirmed" || errors.Is(err, ErrCancelled) && (got == "confirmed" || got == "held") || got == "held" {
					t.Errorf("seed %d: %v, %v, and %s is %s", seed, o, err, v.name, got)
				}
			}
			if err != nil && !errors.Is(err, ErrCancelled) && interlock.Kind(err) != interlock.Uncertain {
				t.Errorf("seed %d: %v", seed, err)
			}
			ends[o.Decision]++
			unscheduled(t, store.Journal)
		})
	}
	if ends[Confirm] < 10 || ends[Cancel] < 10 {
		t.Errorf("%v", ends)
	}
}

// TestStaleTryGoes: a hold of an engine that died is released by the first sweep after its
// time, and not before.
func TestStaleTryGoes(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		at := crashAt(2) // after its try, before the answer
		hotel.points = at
		store := &watched{Journal: memory.NewJournal(), Points: at}
		dead := idle(t, store, &Options{Hold: time.Minute}, nil, hotel)
		_, err := dead.run(t.Context(), "1", hotel)
		wantKind(t, err, interlock.Uncertain, nil)
		hotel.points = nil
		r := serve(t, &watched{Journal: store.Journal}, 1, nil, hotel)
		for free := time.Duration(0); hotel.state("1") == "held"; free += time.Second {
			time.Sleep(time.Second)
			ok(t, hotel.sweep(t.Context(), r.Decide))
			if passed := time.Since(began); hotel.state("1") != "held" && passed < time.Minute {
				t.Errorf("free after %v", passed)
			}
			if free > time.Minute+time.Second {
				t.Fatal("it is still held")
			}
		}
		_, err = r.run(t.Context(), "1", hotel)
		wantKind(t, err, interlock.Definite, ErrCancelled)
		o, err := r.Look(t.Context(), "1")
		if o.Type != "unknown" || err != nil {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// TestDecide: an existing decision is returned; a missing one is made.
func TestDecide(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		r := serve(t, nil, 1, nil, hotel)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		for name, want := range map[string]Decision{"hotel": Confirm, "another": Cancel} {
			if d, err := r.Decide(t.Context(), "1", name); d != want || err != nil {
				t.Errorf("%s: %s, %v", name, d, err)
			}
		}
		for range 2 {
			if d, err := r.Decide(t.Context(), "2", "hotel"); d != Cancel || err != nil {
				t.Errorf("%s, %v", d, err)
			}
		}
		same(t, "records", txntest.Records(t, r.store.Journal, "2")[:1], "decide:cancel")
		for name, asked := range map[string][2]string{"empty": {"", "hotel"}, "NUL": {"a\x00", "hotel"}, "long": {fmt.Sprintf("%0201d", 1), "hotel"},
			"no branch": {"3", ""}, "long branch": {"3", fmt.Sprintf("%0256d", 1)}} {
			_, err := r.Decide(t.Context(), asked[0], asked[1])
			if wantKind(t, err, interlock.Bug, interlock.ErrName); err == nil {
				t.Error(name)
			}
		}
		_, err := r.Look(t.Context(), "3")
		wantKind(t, err, interlock.Definite, ErrNone)
	})
}

// TestBusyTry: a try for which the participant asks for more time than is left is given up at once.
func TestBusyTry(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		hotel.bad = func(branch.Call) (before, after error) { return branch.Retry(txntest.Busy(time.Minute)), nil }
		r := serve(t, nil, 1, &Options{Retry: Policy{Max: time.Hour}}, hotel)
		_, err := r.run(t.Context(), "1", hotel)
		if wantKind(t, err, interlock.Definite, ErrCancelled); time.Since(began) > 0 || !errors.Is(err, txntest.Busy(time.Minute)) || hotel.state("1") != "" {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestLongWaits: a participant that does not answer for a day is called at the policy's
// intervals, and one that requests hours gets them, up to the policy's longest unless it is processing
// the call.
func TestLongWaits(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		most int64
	}{"unknown": {errNetwork, 100}, "ongoing": {branch.InProgress(2 * time.Hour), 20}, "busy": {txntest.Busy(2 * time.Hour), 26}} {
		atHotel(t, 1, func(t *testing.T, hotel *venue) {
			var calls atomic.Int64
			hotel.bad = func(call branch.Call) (before, after error) {
				if call.Operation == branch.Confirm {
					calls.Add(1)
					return c.err, nil
				}
				return nil, nil
			}
			r := serve(t, nil, 1, &Options{Retry: Policy{Max: time.Hour}}, hotel)
			ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
			time.Sleep(24 * time.Hour)
			if n := calls.Load(); n > c.most || n < 10 {
				t.Errorf("%s: %d calls in a day", name, n)
			}
		})
	}
}

// crowd is a database with a number of expired holds.
type crowd struct {
	driver.Tx[driver.SQL]
	due int
}

func (c *crowd) Begin(context.Context) (driver.Tx[driver.SQL], error) { return c, nil }
func (c *crowd) BeginAt(context.Context, driver.Isolation) (driver.Tx[driver.SQL], error) {
	return c, nil
}
func (c *crowd) Dialect() driver.Dialect                                   { return driver.Postgres }
func (c *crowd) Bound(context.Context, time.Duration, time.Duration) error { return nil }
func (c *crowd) Commit(context.Context) error                              { return nil }
func (c *crowd) Rollback(context.Context) error                            { return nil }
func (c *crowd) Exec(context.Context, string, ...any) (int64, error)       { return 1, nil }

func (c *crowd) Query(_ context.Context, query string, args []any, each func(func(...any) error) error) error {
	rows := 1
	if strings.HasPrefix(query, "select transaction_id") {
		rows = min(c.due, args[0].(int))
		c.due -= rows
	}
	for range rows {
		_ = each(func(columns ...any) error {
			for _, column := range columns {
				if text, ok := column.(*string); ok {
					*text = "x"
				}
			}
			return nil
		})
	}
	return nil
}

// TestWatchReleasesACrowd of expired holds without pauses.
func TestWatchReleasesACrowd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const holds = 250
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		asked := 0
		_ = Holds[driver.SQL]{DB: &crowd{due: holds}}.Watch(ctx, func(context.Context, string, string) (Decision, error) {
			if asked++; asked == holds {
				stop()
			}
			return Cancel, nil
		})
		if took := time.Since(began); asked != holds || took > 0 {
			t.Errorf("%d in %v", asked, took)
		}
	})
}
