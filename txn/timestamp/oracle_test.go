package timestamp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// TestTimestampsNeverFall: three processes request over a store that delays and loses
// requests, with clocks that jump by an hour.
func TestTimestampsNeverFall(t *testing.T) {
	for seed := range uint64(150) {
		virtual.Test(t, func(t *testing.T) {
			if report := run(t, seed, seed%2 == 1); !report.OK() {
				t.Fatalf("seed %d: %v", seed, report)
			}
		})
	}
}

// counting counts the requests to a store.
type counting struct {
	driver.KeyValues
	gets, swaps int
	hold        chan struct{} // Get waits for it, if it is not nil
	lose        bool          // the reply of each swap
}

func (c *counting) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	c.gets++
	if c.hold != nil {
		<-c.hold
	}
	return c.KeyValues.Get(ctx, keys...)
}

func (c *counting) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	c.swaps++
	revision, err := c.KeyValues.Swap(ctx, swaps...)
	if c.lose {
		return 0, interlock.ErrUncertain
	}
	return revision, err
}

func open(t *testing.T, store driver.KeyValues) *Oracle {
	t.Helper()
	o, err := NewOracle(store, "oracle", nil)
	testbed.OK(t, err)
	return o
}

func next(t *testing.T, o *Oracle) Timestamp {
	t.Helper()
	at, err := o.Next(t.Context())
	testbed.OK(t, err)
	return at
}

func TestALeaderWritesSeldom(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := &counting{KeyValues: memory.NewKeyValues()}
		o := open(t, store)
		first := next(t, o)
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			next(t, o)
		}
		if store.gets != 1001 || store.swaps > 20 {
			t.Errorf("1,001 batches in ten seconds cost %d reads and %d writes", store.gets, store.swaps)
		}
		if passed := next(t, o).Sub(first); passed < 10*time.Second || passed > 14*time.Second {
			t.Errorf("ten seconds are %v for it", passed)
		}
	})
}

func TestConcurrentRequestsAreOneBatch(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := &counting{KeyValues: memory.NewKeyValues(), hold: make(chan struct{})}
		o := open(t, store)
		var running sync.WaitGroup
		var mu sync.Mutex
		seen := map[Timestamp]bool{}
		for range 1000 {
			running.Go(func() {
				at := next(t, o)
				mu.Lock()
				defer mu.Unlock()
				seen[at] = true
			})
		}
		impatient, cancel := context.WithCancelCause(t.Context())
		running.Go(func() {
			cause := errors.New("the caller has no more time")
			cancel(cause)
			if _, err := o.Next(impatient); !errors.Is(err, cause) {
				t.Errorf("it returned %v", err)
			}
		})
		synctest.Wait() // all but the first wait for the second batch
		close(store.hold)
		running.Wait()
		if len(seen) != 1000 || store.gets > 3 {
			t.Errorf("%d timestamps for 1,000 requests, by %d reads", len(seen), store.gets)
		}
	})
}

// TestAlternatingLeadersDoNotHurryTime: changes of the leader do not advance time, however many
// batches each of them issues.
func TestAlternatingLeadersDoNotHurryTime(t *testing.T) {
	for _, pause := range []time.Duration{0, 3 * time.Millisecond, time.Second} {
		virtual.Test(t, func(t *testing.T) {
			store := &counting{KeyValues: memory.NewKeyValues()}
			a, b := open(t, store), open(t, store)
			first, last, began := next(t, a), Timestamp(0), time.Now()
			for range 1000 {
				for i, o := range []*Oracle{a, a, b, b} {
					time.Sleep(pause * time.Duration(i%2))
					at := next(t, o)
					if at <= last {
						t.Fatalf("%d after %d", at, last)
					}
					last = at
				}
			}
			if passed, real := last.Sub(first), time.Since(began); passed < real-time.Second || passed > real+2*DefaultAhead {
				t.Errorf("%v are %v for it", real, passed)
			}
			store.swaps = 0
			for range 1000 {
				time.Sleep(10 * time.Millisecond)
				last = next(t, b)
			}
			if passed, real := last.Sub(first), time.Since(began); store.swaps > 20 || passed > real+DefaultAhead {
				t.Errorf("after ten seconds of one leader and %d writes, %v are %v", store.swaps, real, passed)
			}
		})
	}
}

func TestAClockThatIsSetBackIsNotFollowed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := memory.NewKeyValues()
		before := next(t, open(t, store))
		o := open(t, store)
		o.wall = func() time.Time { return time.Now().Add(-24 * time.Hour) }
		first := next(t, o)
		time.Sleep(time.Minute)
		if second := next(t, o); first <= before || second.Sub(first) < time.Minute {
			t.Errorf("%v, then %v, and a minute later %v", before.Time(), first.Time(), second.Time())
		}
	})
}

// TestCommitsShareWrites: commits that wait at the same time are one write if they fit.
func TestCommitsShareWrites(t *testing.T) {
	keys := func(prefix string, n, size int) (changes []driver.Swap) {
		for i := range n {
			changes = append(changes, driver.Swap{Key: fmt.Sprint(prefix, i), Value: make([]byte, size)})
		}
		return changes
	}
	tests := map[string]struct {
		commits  [][]driver.Swap
		swaps    int
		accepted int
	}{
		"three":                {[][]driver.Swap{keys("a", 1, 1), keys("b", 2, 1), keys("c", 1, 1)}, 1, 3},
		"two of one key":       {[][]driver.Swap{keys("a", 1, 1), keys("a", 1, 1)}, 1, 1},
		"the oracle's own key": {[][]driver.Swap{{{Key: "oracle", Value: []byte("x")}}, keys("a", 1, 1)}, 1, 1},
		"too many for one":     {[][]driver.Swap{keys("a", 40, 1), keys("b", 40, 1), keys("c", 1, 1)}, 2, 3},
		"too large for one":    {[][]driver.Swap{keys("a", 1, 300<<10), keys("b", 1, 300<<10)}, 2, 2},
		"a refused large one":  {[][]driver.Swap{keys("a", 1, 1), {{Key: "a0", Value: make([]byte, 600<<10)}}, keys("c", 1, 1)}, 1, 2},
		"a large one":          {[][]driver.Swap{keys("a", 2, 300<<10)}, 1, 1},
		"one too many":         {[][]driver.Swap{keys("a", driver.MaxSwaps, 1), keys("b", driver.MaxSwaps-1, 1)}, 1, 1},
		"no change":            {[][]driver.Swap{nil}, 0, 0},
		"another revision":     {[][]driver.Swap{{{Key: "a", Revision: 7, Value: []byte("x")}}, keys("b", 1, 1)}, 1, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				store := &counting{KeyValues: memory.NewKeyValues()}
				o := lead(t, store)
				var running sync.WaitGroup
				store.hold, store.swaps = make(chan struct{}), 0
				running.Go(func() { next(t, o) })
				synctest.Wait()
				var mu sync.Mutex
				accepted := map[Timestamp]bool{}
				for _, changes := range test.commits {
					running.Go(func() {
						at, err := o.Commit(t.Context(), func(Timestamp) []driver.Swap { return changes })
						testbed.OK(t, err)
						if mu.Lock(); at > 0 {
							accepted[at] = true
						}
						mu.Unlock()
					})
					synctest.Wait()
				}
				close(store.hold)
				running.Wait()
				if store.swaps != test.swaps || len(accepted) != test.accepted {
					t.Errorf("%d writes, and %d commits: %v", store.swaps, len(accepted), accepted)
				}
				if next(t, o); store.swaps != test.swaps {
					t.Error("it had to take over")
				}
			})
		})
	}
}

// lead returns an oracle that has led for minutes.
func lead(t *testing.T, store driver.KeyValues) *Oracle {
	t.Helper()
	o := open(t, store)
	for range 3 {
		time.Sleep(time.Minute)
		next(t, o)
	}
	return o
}

// TestCommitsNeedALeader: an oracle does not try a commit that would probably fail.
func TestCommitsNeedALeader(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := &counting{KeyValues: memory.NewKeyValues()}
		o, written := open(t, store), 0
		commit := func() Timestamp {
			t.Helper()
			at, err := o.Commit(t.Context(), func(Timestamp) []driver.Swap {
				written++
				return []driver.Swap{{Key: fmt.Sprint(written)}}
			})
			testbed.OK(t, err)
			return at
		}
		refused := func(why string) {
			t.Helper()
			requests := store.gets + store.swaps
			if at := commit(); at > 0 || o.Commits(store) || store.gets+store.swaps != requests {
				t.Errorf("%s: it committed at %d, by %d requests", why, at, store.gets+store.swaps-requests)
			}
		}
		accepted := func(why string) {
			t.Helper()
			if before := next(t, o); !o.Commits(store) || commit() <= before {
				t.Errorf("%s: it did not commit", why)
			}
		}
		refused("before it led")
		next(t, o)
		refused("it just took over")
		time.Sleep(steadyAfter)
		accepted("a second later")
		time.Sleep(time.Minute)
		store.lose = true
		if _, err := o.Next(t.Context()); err == nil {
			t.Error("it did not raise the bound")
		}
		store.lose = false
		accepted("after a reply was lost")
		next(t, open(t, store.KeyValues))
		if at := commit(); at > 0 {
			t.Errorf("it committed at %d after another took over", at)
		}
		next(t, o)
		refused("another had just taken over")
		time.Sleep(steadyAfter)
		next(t, o)
		store.lose = true
		if _, err := o.Commit(t.Context(), func(Timestamp) []driver.Swap { return []driver.Swap{{Key: "lost"}} }); interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("a lost reply: %v", err)
		}
		store.lose = false
		swaps := store.swaps
		if accepted("after a lost commit"); store.swaps != swaps+2 {
			t.Errorf("it wrote %d times after the reply of a commit was lost", store.swaps-swaps)
		}
		if o.Commits(incomparable{}) || o.Commits(memory.NewKeyValues()) {
			t.Error("it commits to another store")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		store.hold = make(chan struct{})
		var running sync.WaitGroup
		running.Go(func() { next(t, o) })
		synctest.Wait()
		if _, err := o.Commit(ended, func(Timestamp) []driver.Swap { return nil }); interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("a context that has ended: %v", err)
		}
		close(store.hold)
		running.Wait()
	})
}

// incomparable is a store that cannot be compared with another one.
type incomparable struct {
	driver.KeyValues
	_ func()
}

func TestErrors(t *testing.T) {
	if _, err := NewOracle(nil, "oracle", nil); interlock.Kind(err) != interlock.Bug {
		t.Errorf("without a store: %v", err)
	}
	for _, o := range []*Options{{Ahead: -1}, {Ahead: time.Hour}} {
		if _, err := NewOracle(memory.NewKeyValues(), "oracle", o); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := NewOracle(memory.NewKeyValues(), "", nil); !errors.Is(err, interlock.ErrName) {
		t.Errorf("without a key: %v", err)
	}
	for _, text := range []string{"", "x", `{"format":2,"epoch":1,"bound":1}`, `{"format":1,"epoch":0,"bound":1}`, `{"format":1,"epoch":1,"bound":0}`} {
		store := memory.NewKeyValues()
		if _, err := store.Swap(t.Context(), driver.Swap{Key: "oracle", Value: []byte(text)}); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t, store).Next(t.Context()); interlock.Kind(err) != interlock.Definite || !errors.Is(err, errFormat) {
			t.Errorf("%q is led: %v", text, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(t, memory.NewKeyValues()).Next(ended); interlock.Kind(err) != interlock.Definite {
		t.Errorf("a context that has ended: %v", err)
	}
}

func ExampleOracle() {
	store := memory.NewKeyValues()
	one, err := NewOracle(store, "oracle", nil)
	if err != nil {
		panic(err)
	}
	other, err := NewOracle(store, "oracle", nil) // like another process
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	a, _ := one.Next(ctx)
	b, _ := other.Next(ctx)
	c, _ := one.Next(ctx)
	fmt.Println(a < b, b < c)
	// Output: true true
}
