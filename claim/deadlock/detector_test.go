package deadlock

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// system is one store with locks, and the board beside them.
type system struct {
	board Board
	locks *lock.Fenced
}

func newSystem(t *testing.T) *system {
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close(context.Background()) })
	return &system{memory.NewKeyValues(), locks}
}

func (s *system) acquire(ctx context.Context, name string) (*lock.Claim, error) {
	return Acquire(ctx, Resource{s.board, name}, func(ctx context.Context) (*lock.Claim, error) { return s.locks.Acquire(ctx, name) })
}

func (s *system) notes(t *testing.T) []driver.KeyValue {
	notes, err := s.board.Scan(t.Context(), prefix, behind, 100)
	if err != nil {
		t.Fatal(err)
	}
	return notes
}

func newDetector(t *testing.T, o *Options) *Detector {
	d := New(o)
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestCycleOverThreeSystems: three processes, each of which uses two of three systems.
func TestCycleOverThreeSystems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		systems := []*system{newSystem(t), newSystem(t), newSystem(t)}
		var found []error
		var mu sync.Mutex
		hooks := &observe.Deadlock{Found: func(e observe.DeadlockFound) {
			mu.Lock()
			defer mu.Unlock()
			found = append(found, e.Err)
		}}
		names := []string{"first", "second", "third"}
		tasks, claims := [3]context.Context{}, [3]*lock.Claim{}
		for i, name := range names {
			tasks[i] = newDetector(t, &Options{Hooks: hooks}).Task(t.Context(), name, 0)
			var err error
			if claims[i], err = systems[i].acquire(tasks[i], "x"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // so the third is the youngest
		}
		began := time.Now()
		var all sync.WaitGroup
		for i, name := range names {
			ctx, mine := tasks[i], claims[i]
			all.Go(func() {
				defer mine.Release(ctx)
				other, err := systems[(i+1)%3].acquire(ctx, "x")
				var cycle *Error
				switch {
				case err == nil && name != "third":
					other.Release(ctx)
				case name != "third" || !errors.As(err, &cycle) || interlock.Kind(err) != interlock.Retryable:
					t.Errorf("%s: %v", name, err)
				case len(cycle.Cycle) != 3 || cycle.Cycle[0] != (Edge{"third", "x"}) || cycle.Cycle[1].Task != "first":
					t.Errorf("the cycle is %v", cycle)
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if took > time.Second || len(found) != 1 {
			t.Errorf("%d deadlocks were found, it took %v", len(found), took)
		}
		for i, s := range systems {
			if left := s.notes(t); len(left) != 0 {
				t.Errorf("system %d keeps %s", i, left[0].Value)
			}
		}
	})
}

// counted counts the requests to a board.
type counted struct {
	Board
	requests atomic.Int32
	broken   error
}

func (c *counted) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	c.requests.Add(1)
	if c.broken != nil {
		return nil, c.broken
	}
	return c.Board.Scan(ctx, from, to, limit)
}

func (c *counted) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	c.requests.Add(1)
	return c.Board.Swap(ctx, swaps...)
}

// TestCosts: short waits, and waits of tasks that hold nothing, cost no request. A long one
// costs one a round, and two when it begins and ends.
func TestCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		board := &counted{Board: s.board}
		s.board = board
		d := newDetector(t, nil)
		holder, err := s.acquire(d.Task(t.Context(), "holder", 0), "a")
		if err != nil {
			t.Fatal(err)
		}
		wait := func(ctx context.Context, long time.Duration) {
			ctx, cancel := context.WithTimeout(ctx, long)
			defer cancel()
			if _, err := s.acquire(ctx, "a"); err == nil || errors.As(err, new(*Error)) {
				t.Errorf("it ended with %v", err)
			}
			time.Sleep(time.Second)
		}
		wait(d.Task(t.Context(), "holds nothing", 0), time.Minute)
		ctx := d.Task(t.Context(), "waiter", 0)
		if _, err := s.acquire(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		wait(ctx, DefaultDelay/2)
		if board.requests.Load() != 0 {
			t.Errorf("%d requests were sent", board.requests.Load())
		}
		wait(ctx, DefaultDelay+2*time.Second)
		if n := board.requests.Load(); n < 40 || n > 46 {
			t.Errorf("%d requests were sent for a wait of 40 rounds", n)
		}
		holder.Release(ctx)
	})
}

// TestNotesOfCrashedProcesses are removed by those who wait, after half a minute. Those of
// processes that live are not.
func TestNotesOfCrashedProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		if _, err := s.board.Swap(t.Context(), driver.Swap{Key: prefix + "crashed/1.2", Value: []byte(`{"version":1,"task":"crashed/1","awaits":"b"}`)}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		holder, err := s.locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"b", "c"} {
			ctx := newDetector(t, nil).Task(ctx, name, 0)
			if _, err := s.acquire(ctx, name); err != nil {
				t.Fatal(err)
			}
			all.Go(func() { s.acquire(ctx, "a") })
		}
		time.Sleep(departed / 2)
		early := s.notes(t)
		time.Sleep(departed/2 - time.Second)
		for i, kv := range s.notes(t) {
			if alive := kv.Key != prefix+"crashed/1.2"; alive != (kv.Revision > early[i].Revision) {
				t.Errorf("%s has revision %d, before %d", kv.Key, kv.Revision, early[i].Revision)
			}
		}
		if n := len(s.notes(t)); n != 3 {
			t.Errorf("%d notes are left before half a minute", n)
		}
		time.Sleep(2 * departed)
		if n := len(s.notes(t)); n != 2 {
			t.Errorf("%d notes are left after it", n)
		}
		cancel()
		all.Wait()
		holder.Release(t.Context())
	})
}

// TestClose removes the notes of waits that go on.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		d := New(nil)
		ctx := d.Task(t.Context(), "t", 0)
		one, err := s.acquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := s.locks.Acquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			got, err := s.acquire(ctx, "b")
			if err != nil {
				t.Error(err)
				return
			}
			got.Release(ctx)
		})
		time.Sleep(time.Second)
		if len(s.notes(t)) != 1 {
			t.Error("the wait is not published")
		}
		if err := d.Close(t.Context()); err != nil || len(s.notes(t)) != 0 {
			t.Errorf("%v, and a note is left", err)
		}
		other.Release(t.Context())
		all.Wait()
		one.Release(t.Context())
	})
}

// TestBrokenBoard is reported and left in peace. Deadlocks on other boards are found.
func TestBrokenBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &counted{Board: memory.NewKeyValues(), broken: errors.New("no route")}
		var failed []error
		d := newDetector(t, &Options{Hooks: &observe.Deadlock{Log: observe.Silent, Failed: func(e observe.DeadlockFailed) { failed = append(failed, e.Err) }}})
		s := newSystem(t)
		ctx := d.Task(t.Context(), "t", 0)
		drop, err := Wait(ctx, Resource{broken, "far"}, func(context.Context) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		defer drop()
		if _, err := s.acquire(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err = s.acquire(ctx, "a"); !errors.As(err, new(*Error)) { // awaits itself
			t.Errorf("it ended with %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if len(failed) == 0 || len(failed) > 2 {
			t.Errorf("failures were %v", failed)
		}
	})
}

// TestUnknownVersion: a note of a later version is reported, and does no harm.
func TestUnknownVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := newSystem(t)
		for key, value := range map[string]string{"1": `{"version":2}`, "2": `?`, "3": `{"version":1,"probes":[{}]}`, "4": `{"version":1,"task":"x","probes":[{"path":[{"task":"y"}]}]}`} {
			if _, err := s.board.Swap(t.Context(), driver.Swap{Key: prefix + key, Value: []byte(value)}); err != nil {
				t.Fatal(err)
			}
		}
		d := newDetector(t, &Options{Hooks: &observe.Deadlock{Log: slog.New(slog.NewTextHandler(&out, nil))}})
		ctx := d.Task(t.Context(), "t", 0)
		if _, err := s.acquire(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.acquire(ctx, "a"); !errors.As(err, new(*Error)) {
			t.Errorf("it ended with %v", err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if !strings.Contains(out.String(), "version 2 is not known") {
			t.Errorf("the log is %s", out.String())
		}
	})
}

// TestVerdictAsItIsAcquired: a claim that comes with the verdict is released.
func TestVerdictAsItIsAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		ctx := newDetector(t, nil).Task(t.Context(), "t", 0)
		if _, err := s.acquire(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		claim, err := Acquire(ctx, Resource{s.board, "a"}, func(ctx context.Context) (*lock.Claim, error) {
			<-ctx.Done()
			return s.locks.Acquire(t.Context(), "b")
		})
		if claim != nil || !errors.As(err, new(*Error)) {
			t.Errorf("the verdict is %v", err)
		}
		if _, err := s.locks.TryAcquire(t.Context(), "b"); err != nil {
			t.Errorf("b is kept: %v", err)
		}
	})
}

func TestMisuse(t *testing.T) {
	d := newDetector(t, nil)
	never := func(context.Context) error { t.Error("it was called"); return nil }
	for _, c := range []struct {
		ctx context.Context
		r   Resource
	}{
		{t.Context(), Resource{memory.NewKeyValues(), "a"}},
		{d.Task(t.Context(), "t", 0), Resource{nil, "a"}},
		{d.Task(t.Context(), "t", 0), Resource{memory.NewKeyValues(), ""}},
	} {
		if _, err := Wait(c.ctx, c.r, never); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v: %v", c.r, err)
		}
	}
}
