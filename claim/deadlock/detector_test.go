package deadlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// system is a store with locks and a board.
type system struct {
	board Board
	locks *lock.Fenced
}

func newSystem(t *testing.T) *system {
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil)
	testbed.OK(t, err)
	t.Cleanup(func() { _ = locks.Close(context.Background()) })
	return &system{memory.NewKeyValues(), locks}
}

func (s *system) acquire(ctx context.Context, name string) (*lock.Claim, error) {
	return Wrap(Resource{Board: s.board}, s.locks.Acquire)(ctx, name)
}

func (s *system) notes(t *testing.T) []driver.KeyValue {
	seen := &sight{}
	testbed.OK(t, seen.read(t.Context(), s.board))
	return seen.notes
}

func newDetector(t *testing.T, o *Options) *Detector {
	d := New(o)
	testbed.CloseAfter(t, d)
	return d
}

// distant is a board whose requests take 1 to 20 ms, and one of fifty 100 ms.
type distant struct{ Board }

func (d distant) pass() {
	long := 100 * time.Millisecond
	if rand.IntN(50) > 0 {
		long = time.Millisecond + rand.N(19*time.Millisecond)
	}
	time.Sleep(long)
}

func (d distant) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	d.pass()
	return d.Board.Scan(ctx, from, to, limit)
}

func (d distant) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	d.pass()
	return d.Board.Swap(ctx, swaps...)
}

// TestCycleOverThreeSystems: three processes, each of which uses two of three systems. In 99 of 100
// deadlocks the wait of the youngest ends within a second.
func TestCycleOverThreeSystems(t *testing.T) {
	const rounds = 300
	virtual.Test(t, func(t *testing.T) {
		systems := []*system{newSystem(t), newSystem(t), newSystem(t)}
		var found atomic.Int32
		hooks := &observe.Deadlock{Found: func(observe.DeadlockFound) { found.Add(1) }}
		names := []string{"first", "second", "third"}
		detectors := [3]*Detector{}
		for i, s := range systems {
			s.board = distant{s.board}
			detectors[i] = newDetector(t, &Options{Hooks: hooks})
		}
		var took []time.Duration
		for round := range rounds {
			tasks, claims := [3]context.Context{}, [3]*lock.Claim{}
			for i, name := range names {
				tasks[i] = detectors[i].Task(t.Context(), name, 0)
				var err error
				claims[i], err = systems[i].acquire(tasks[i], "x")
				testbed.OK(t, err)
				time.Sleep(rand.N(DefaultInterval) + time.Millisecond) // makes the third the youngest
			}
			began := time.Now()
			var all sync.WaitGroup
			for i, name := range names {
				ctx, mine := tasks[i], claims[i]
				all.Go(func() {
					defer mine.Release(ctx)
					other, err := systems[(i+1)%3].acquire(ctx, "x")
					if err == nil {
						other.Release(ctx)
					}
					var cycle *Error
					switch {
					case name != "third" && err == nil:
					case name != "third" || !errors.As(err, &cycle) || interlock.Kind(err) != interlock.Retryable:
						t.Errorf("%s: %v", name, err)
					case len(cycle.Cycle) != 3 || cycle.Cycle[0].String() != "third awaits x, held by first" || cycle.Cycle[1].Task != "first":
						t.Errorf("the cycle is %v", cycle)
					}
				})
			}
			all.Wait()
			took = append(took, time.Since(began))
			time.Sleep(2 * time.Second)
			if int(found.Load()) != round+1 {
				t.Fatalf("%d deadlocks were found, not %d", found.Load(), round+1)
			}
			for i, s := range systems {
				if left := s.notes(t); len(left) != 0 {
					t.Errorf("system %d keeps %s", i, left[0].Value)
				}
			}
		}
		slices.Sort(took)
		t.Logf("found after %v (median), %v (99 of 100), %v (longest)", took[rounds/2], took[rounds*99/100], took[rounds-1])
		if took[rounds*99/100] > time.Second {
			t.Error("that is more than a second")
		}
	})
}

// counted counts the requests to a board.
type counted struct {
	Board
	requests atomic.Int32
	broken   error
	scanned  func() // before the answer
	written  []string
}

func (c *counted) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	c.requests.Add(1)
	if c.broken != nil {
		return nil, c.broken
	}
	if c.scanned != nil {
		defer c.scanned()
	}
	return c.Board.Scan(ctx, from, to, limit)
}

func (c *counted) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	c.requests.Add(1)
	c.written = append(c.written, swaps[0].Key)
	return c.Board.Swap(ctx, swaps...)
}

// TestCosts: short waits, and waits of tasks that hold nothing, cost no request. A long
// wait costs one request each round, and two at its begin and end.
func TestCosts(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newSystem(t)
		board := &counted{Board: s.board}
		s.board = board
		d := newDetector(t, nil)
		holder, err := s.acquire(d.Task(t.Context(), "holder", 0), "a")
		testbed.OK(t, err)
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
		_, err = s.acquire(ctx, "b")
		testbed.OK(t, err)
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

// TestPermits: tasks that hold all permits of a semaphore and want another one are in a deadlock
// once none of them can continue.
func TestPermits(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		permits, err := semaphore.New(memory.NewSpace().Open(nil), 3, nil)
		testbed.OK(t, err)
		defer permits.Close(t.Context())
		acquire := Wrap(Resource{Board: memory.NewKeyValues(), Permits: 3}, permits.Acquire)
		d := newDetector(t, nil)
		var all sync.WaitGroup
		var ended atomic.Int32
		taken := make(chan struct{})
		for i := range 3 {
			ctx := d.Task(t.Context(), strconv.Itoa(i), i)
			own, err := acquire(ctx, "pool")
			testbed.OK(t, err)
			all.Go(func() {
				<-taken
				defer own.Release(ctx)
				time.Sleep(time.Duration(i) * time.Minute) // until the last one waits, one still works
				began := time.Now()
				more, err := acquire(ctx, "pool")
				switch {
				case err == nil:
					more.Release(ctx)
				case i > 0 || !errors.As(err, new(*Error)) || time.Since(began) < 2*time.Minute:
					t.Errorf("%d: %v", i, err)
				default:
					ended.Add(1)
				}
			})
		}
		close(taken)
		all.Wait()
		if ended.Load() != 1 {
			t.Errorf("%d waits were ended", ended.Load())
		}
	})
}

// TestReadersAndWriters: each of three tasks reads what the next one wants to write.
func TestReadersAndWriters(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		locks, err := rwlock.New(memory.NewSpace().Open(nil), nil)
		testbed.OK(t, err)
		defer locks.Close(t.Context())
		r, d := Resource{Board: memory.NewKeyValues()}, newDetector(t, nil)
		read, write := Wrap(r, locks.AcquireRead), Wrap(r, locks.AcquireWrite)
		var all sync.WaitGroup
		taken := make(chan struct{})
		for i := range 3 {
			ctx := d.Task(t.Context(), strconv.Itoa(i), i)
			own, err := read(ctx, strconv.Itoa(i))
			testbed.OK(t, err)
			all.Go(func() {
				<-taken
				defer own.Release(ctx)
				next, err := write(ctx, strconv.Itoa((i+1)%3))
				if (err == nil) != (i > 0) || err != nil && !errors.As(err, new(*Error)) {
					t.Errorf("%d: %v", i, err)
				}
				if err == nil {
					next.Release(ctx)
				}
			})
		}
		close(taken)
		all.Wait()
	})
}

// TestModes: whichever mode ends a wait, its error has the same type and kind. (YugabyteDB 21802:
// a deadlock had several error codes.)
func TestModes(t *testing.T) {
	for mode, want := range map[Mode]string{
		Detect:    "deadlock: younger awaits x, held by older; older awaits y, held by younger",
		WoundWait: "wound-wait: younger awaits x; older awaits y, held by younger",
		WaitDie:   "wait-die: younger awaits x, held by older",
	} {
		virtual.Test(t, func(t *testing.T) {
			s := newSystem(t)
			var all sync.WaitGroup
			older := newDetector(t, &Options{Mode: mode}).Task(t.Context(), "older", 1)
			younger := newDetector(t, &Options{Mode: mode}).Task(t.Context(), "younger", 0)
			x, err := s.acquire(older, "x")
			testbed.OK(t, err)
			y, err := s.acquire(younger, "y")
			testbed.OK(t, err)
			all.Go(func() {
				y, err := s.acquire(older, "y")
				if err != nil {
					t.Error(err)
				} else {
					y.Release(older)
				}
				x.Release(older)
			})
			_, err = s.acquire(younger, "x")
			var found *Error
			if !errors.As(err, &found) || found.Error() != want || found.Mode != mode || interlock.Kind(err) != interlock.Retryable {
				t.Errorf("%v: it ended with %v", mode, err)
			}
			y.Release(younger)
			all.Wait()
		})
	}
}

// TestModesOnANewBoard: in the round in which a detector meets a board, it knows nothing of the wait there. The wait
// ends in the next one.
func TestModesOnANewBoard(t *testing.T) {
	for _, mode := range []Mode{WoundWait, WaitDie} {
		virtual.Test(t, func(t *testing.T) {
			near, far := newSystem(t), newSystem(t)
			older := newDetector(t, &Options{Mode: mode}).Task(t.Context(), "older", 1)
			younger := newDetector(t, &Options{Mode: mode}).Task(t.Context(), "younger", 0)
			x, err := near.acquire(younger, "x")
			testbed.OK(t, err)
			y, err := far.locks.Acquire(t.Context(), "y")
			testbed.OK(t, err)
			held, err := near.acquire(older, "held") // so that its wait is published
			testbed.OK(t, err)
			var all sync.WaitGroup
			all.Go(func() {
				if x, err := near.acquire(older, "x"); err != nil {
					t.Error(err)
				} else {
					x.Release(older)
				}
			})
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(younger, time.Second)
			defer cancel()
			if _, err = far.acquire(ctx, "y"); errors.As(err, new(*Error)) != (mode == WoundWait) {
				t.Errorf("%v: it ended with %v", mode, err)
			}
			testbed.OK(t, errors.Join(x.Release(younger), y.Release(younger), held.Release(older)))
			all.Wait()
		})
	}
}

// TestBoardIsLost: a board that loses all notes, as in a failover, delays the detection of a
// deadlock, but does not prevent it. (TiKV 5028, 6126, 6985: its detector forgot waits when its
// leader changed.)
func TestBoardIsLost(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newSystem(t)
		ctx := newDetector(t, nil).Task(t.Context(), "t", 0)
		_, err := s.acquire(ctx, "a")
		testbed.OK(t, err)
		var lost atomic.Int32
		time.AfterFunc(DefaultDelay+DefaultInterval/2, func() {
			all, err := s.board.Scan(context.Background(), "", "", 100)
			for _, kv := range all {
				_, err = s.board.Swap(context.Background(), driver.Swap{Key: kv.Key, Revision: kv.Revision, Delete: true})
				lost.Add(1)
			}
			if err != nil {
				t.Error(err)
			}
		})
		if _, err := s.acquire(ctx, "a"); !errors.As(err, new(*Error)) || lost.Load() == 0 {
			t.Errorf("it ended with %v after %d keys were lost", err, lost.Load())
		}
	})
}

// TestWaitEndsDuringTheReading: a task publishes the holds and waits that it has after the
// read. Otherwise it could confirm a wait that had ended before the second lap began.
func TestWaitEndsDuringTheReading(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newSystem(t)
		ctx := newDetector(t, nil).Task(t.Context(), "t", 0)
		waiting, cancel := context.WithCancel(ctx)
		_, err := s.board.Swap(t.Context(), driver.Swap{Key: boardID, Value: []byte("x")})
		testbed.OK(t, err)
		board := &counted{Board: s.board, scanned: func() { cancel(); synctest.Wait() }}
		s.board = board
		_, err = s.acquire(ctx, "a")
		testbed.OK(t, err)
		if _, err := s.acquire(waiting, "a"); err == nil || errors.As(err, new(*Error)) {
			t.Errorf("it ended with %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if board.written != nil {
			t.Errorf("written was %q", board.written)
		}
	})
}

// TestNotesOfCrashedProcesses are removed by waiting processes, after half a minute. Notes
// of live processes are not.
func TestNotesOfCrashedProcesses(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newSystem(t)
		_, err := s.board.Swap(t.Context(), driver.Swap{Key: prefix + "crashed/1.2", Value: []byte(`{"version":2,"task":"crashed","awaits":"b","links":[{"task":"crashed/1"}]}`)})
		testbed.OK(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		holder, err := s.locks.Acquire(t.Context(), "a")
		testbed.OK(t, err)
		for _, name := range []string{"b", "c"} {
			ctx := newDetector(t, nil).Task(ctx, name, 0)
			_, err := s.acquire(ctx, name)
			testbed.OK(t, err)
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

// TestClose removes the notes of waits that continue.
func TestClose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newSystem(t)
		d := New(nil)
		ctx := d.Task(t.Context(), "t", 0)
		one, err := s.acquire(ctx, "a")
		testbed.OK(t, err)
		other, err := s.locks.Acquire(t.Context(), "b")
		testbed.OK(t, err)
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

// TestCloseAfterFailure: Close deletes the notes also from a board that failed in the last round.
func TestCloseAfterFailure(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newSystem(t)
		var broken atomic.Bool
		board := s.board
		s.board = &flaky{board, &broken}
		d := New(nil)
		ctx := d.Task(t.Context(), "t", 0)
		_, err := s.acquire(ctx, "a")
		testbed.OK(t, err)
		_, err = s.locks.Acquire(t.Context(), "b")
		testbed.OK(t, err)
		wait, end := context.WithCancel(ctx)
		var all sync.WaitGroup
		all.Go(func() { _, _ = s.acquire(wait, "b") })
		time.Sleep(time.Second)
		broken.Store(true)
		time.Sleep(d.options.Interval)
		broken.Store(false)
		testbed.OK(t, d.Close(t.Context()))
		if s.board = board; len(s.notes(t)) != 0 {
			t.Error("a note is left")
		}
		end()
		all.Wait()
	})
}

// flaky is a board that cannot be read while it is broken.
type flaky struct {
	Board
	broken *atomic.Bool
}

func (f *flaky) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	if f.broken.Load() {
		return nil, errors.New("no route")
	}
	return f.Board.Scan(ctx, from, to, limit)
}

// TestBrokenBoard is reported, and then skipped for a while. Deadlocks on other boards are found, also
// while the hook blocks.
func TestBrokenBoard(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		broken := &counted{Board: memory.NewKeyValues(), broken: errors.New("no route")}
		var failed []error
		slow := make(chan struct{})
		d := newDetector(t, &Options{Hooks: &observe.Deadlock{Log: observe.Silent, Failed: func(e observe.DeadlockFailed) {
			<-slow
			failed = append(failed, e.Err)
		}}})
		s := newSystem(t)
		ctx := d.Task(t.Context(), "t", 0)
		drop, err := Wait(ctx, Resource{Board: broken, Name: "far"}, func(context.Context) error { return nil })
		testbed.OK(t, err)
		defer drop()
		_, err = s.acquire(ctx, "a")
		testbed.OK(t, err)
		began := time.Now()
		if _, err = s.acquire(ctx, "a"); !errors.As(err, new(*Error)) { // awaits itself
			t.Errorf("it ended with %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		close(slow)
		testbed.OK(t, d.Close(t.Context()))
		if len(failed) == 0 || len(failed) > 2 {
			t.Errorf("failures were %v", failed)
		}
	})
}

// TestUnknownVersion: a note of a later version is reported once, and does no harm.
func TestUnknownVersion(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		failed := map[string]int{}
		s := newSystem(t)
		for key, value := range map[string]string{"1": `{"version":3}`, "2": `?`, "3": `{"version":2,"awaits":"a"}`, "4": `{"version":2,"awaits":"a","links":[{"task":"x"},{"task":"y"}]}`,
			"5": `{"version":2,"awaits":"a","held":"a","links":[{"task":"x"}]}`, "6": `{"version":2,"awaits":"a","links":[{"task":"x"},{"task":"y","hops":99}]}`} {
			_, err := s.board.Swap(t.Context(), driver.Swap{Key: prefix + key, Value: []byte(value)})
			testbed.OK(t, err)
		}
		d := newDetector(t, &Options{Hooks: &observe.Deadlock{Failed: func(e observe.DeadlockFailed) { failed[e.Err.Error()]++ }}})
		ctx := d.Task(t.Context(), "t", 0)
		_, err := s.acquire(ctx, "a")
		testbed.OK(t, err)
		if _, err := s.acquire(ctx, "a"); !errors.As(err, new(*Error)) {
			t.Errorf("it ended with %v", err)
		}
		testbed.OK(t, d.Close(t.Context()))
		if len(failed) != 6 || failed["note deadlock/1: version 3 is not known, this is version 2"] == 0 {
			t.Errorf("reported was %v", failed)
		}
		for text, n := range failed {
			if n > 1 {
				t.Errorf("reported %d times: %s", n, text)
			}
		}
	})
}

// TestVerdictAsItIsAcquired: a claim that is granted at the moment of the verdict is released, also
// if the caller had cancelled before.
func TestVerdictAsItIsAcquired(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			s := newSystem(t)
			found := make(chan observe.DeadlockFound, 1)
			caller, cancel := context.WithCancel(t.Context())
			defer cancel()
			ctx := newDetector(t, &Options{Hooks: &observe.Deadlock{Found: func(e observe.DeadlockFound) { found <- e }}}).Task(caller, "t", 0)
			_, err := s.acquire(ctx, "a")
			testbed.OK(t, err)
			claim, err := Wrap(Resource{Board: s.board}, func(context.Context, string) (*lock.Claim, error) {
				if cancelled {
					cancel()
				}
				<-found
				return s.locks.Acquire(t.Context(), "b")
			})(ctx, "a")
			if claim != nil || cancelled != errors.Is(err, context.Canceled) || cancelled == errors.As(err, new(*Error)) {
				t.Errorf("the verdict is %v", err)
			}
			if _, err := s.locks.TryAcquire(t.Context(), "b"); err != nil {
				t.Errorf("b is kept: %v", err)
			}
		})
	}
}

func TestMisuse(t *testing.T) {
	d := newDetector(t, nil)
	never := func(context.Context) error { t.Error("it was called"); return nil }
	for _, c := range []struct {
		ctx context.Context
		r   Resource
	}{
		{t.Context(), Resource{Board: memory.NewKeyValues(), Name: "a"}},
		{d.Task(t.Context(), "t", 0), Resource{Name: "a"}},
		{d.Task(t.Context(), "t", 0), Resource{Board: memory.NewKeyValues()}},
		{d.Task(t.Context(), "t", 0), Resource{Board: memory.NewKeyValues(), Name: "a", Permits: -1}},
		{d.Task(t.Context(), "t", 0), Resource{Board: memory.NewKeyValues(), Name: "a", Wanted: 2}},
	} {
		if _, err := Wait(c.ctx, c.r, never); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v: %v", c.r, err)
		}
	}
}
