package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// ledger is what tasks of one key saw.
type ledger struct {
	inside atomic.Int32
	mu     sync.Mutex
	ran    []int // numbers of one submitter rise
}

// TestOrder: with any submitters, bounds and cancellations, tasks of a key run one at a time, in
// the order of each submitter, none twice. Each reports exactly once whether it ran.
func TestOrder(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			x := executor(t, &keyed.Options{Concurrency: 1 + r.IntN(4), PerKey: 1 + r.IntN(6),
				Total: 1 + r.IntN(12), Turn: 1 + r.IntN(3), Wait: seed%3 != 0})
			const submitters, each = 6, 150
			ledgers := make([]ledger, 1+r.IntN(5))
			var all sync.WaitGroup
			var faults atomic.Int64
			for s := range submitters {
				own := rand.New(rand.NewPCG(seed, uint64(2+s)))
				all.Go(func() { submit(t, x, own, ledgers, s, each, &faults, &all) })
			}
			ok(t, testbed.Later(t, testbed.Patience, func() error { all.Wait(); return nil })())
			if n := faults.Load(); n > 0 {
				t.Errorf("%d faults", n)
			}
			for k := range ledgers {
				inOrder(t, &ledgers[k], each)
			}
		})
	}
}

// submit submits tasks one after the other, by Do or Go, with or without a cancellation.
func submit(t *testing.T, x *keyed.Executor, r *rand.Rand, ledgers []ledger, s, each int, faults *atomic.Int64, all *sync.WaitGroup) {
	for i := range each {
		k := r.IntN(len(ledgers))
		l, number := &ledgers[k], s*each+i
		ran, reported := false, atomic.Int32{}
		fn := func(context.Context) error {
			if l.inside.Add(1) != 1 {
				faults.Add(1)
			}
			l.mu.Lock()
			l.ran = append(l.ran, number)
			l.mu.Unlock()
			ran = true
			if number%7 == 0 {
				runtime.Gosched()
			}
			l.inside.Add(-1)
			return nil
		}
		judge := func(err error) {
			if ran != (err == nil) || reported.Add(1) != 1 {
				t.Errorf("ran %v, reported %v", ran, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(200))*time.Microsecond)
		if r.IntN(2) == 0 {
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
		}
		if r.IntN(2) == 0 {
			judge(x.Do(ctx, fmt.Sprint(k), fn))
			cancel()
			continue
		}
		all.Add(1)
		err := x.Go(ctx, fmt.Sprint(k), fn, func(err error) { judge(err); cancel(); all.Done() })
		if err != nil {
			judge(err)
			cancel()
			all.Done()
		}
	}
}

// inOrder checks that no number comes twice, and that those of a submitter rise.
func inOrder(t *testing.T, l *ledger, each int) {
	t.Helper()
	last := map[int]int{}
	for _, n := range l.ran {
		s := n / each
		if before, seen := last[s]; seen && n <= before {
			t.Fatalf("task %d after %d", n, before)
		}
		last[s] = n
	}
}

// TestLeavingKeepsTheOrder: a cancelled task in the queue does not change the order of the others.
func TestLeavingKeepsTheOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, nil)
		release := stuck(t, x, "k")
		var ran []int
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("not wanted any more")
		var reported []error
		for i := range 9 {
			own := t.Context()
			if i%3 == 1 {
				own = ctx
			}
			ok(t, x.Go(own, "k", func(context.Context) error { ran = append(ran, i); return nil },
				func(err error) { reported = append(reported, err) }))
		}
		gone := make(chan error)
		go func() { gone <- x.Do(ctx, "k", func(context.Context) error { ran = append(ran, -1); return nil }) }()
		synctest.Wait()
		cancel(why)
		wantKind(t, <-gone, interlock.Definite, why) // while the key is stuck
		release()
		ok(t, x.Do(t.Context(), "k", nothing))
		if fmt.Sprint(ran) != "[0 2 3 5 6 8]" || len(reported) != 9 {
			t.Errorf("ran %v, reported %v", ran, reported)
		}
		for i, err := range reported {
			if i%3 == 1 {
				wantKind(t, err, interlock.Definite, why)
			} else if err != nil {
				t.Error(i, err)
			}
		}
	})
}

// TestLeftKey: after the only task of a key has left the queue, tasks of the key still run one at a time.
func TestLeftKey(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 2})
		a, b := stuck(t, x, "a"), stuck(t, x, "b")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { wantKind(t, x.Do(ctx, "k", nothing), interlock.Definite, context.Canceled) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		var ran []string
		ok(t, x.Go(t.Context(), "k", func(context.Context) error { time.Sleep(time.Second); ran = append(ran, "first"); return nil }, nil))
		a()
		b()
		synctest.Wait()
		ok(t, x.Do(t.Context(), "k", func(context.Context) error { ran = append(ran, "second"); return nil }))
		if fmt.Sprint(ran) != "[first second]" {
			t.Errorf("ran %v", ran)
		}
	})
}

// TestFairness: a task of a cold key waits for one turn of a hot key.
func TestFairness(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const hot, turn = 10_000, 8
		x := executor(t, &keyed.Options{Concurrency: 1, PerKey: hot + 1, Total: hot + 10, Turn: turn})
		release := stuck(t, x, "first")
		var ran int
		for range hot {
			ok(t, x.Go(t.Context(), "hot", func(context.Context) error { ran++; return nil }, nil))
		}
		var before [3]int
		for i := range before {
			ok(t, x.Go(t.Context(), fmt.Sprint("cold ", i), func(context.Context) error { before[i] = ran; return nil }, nil))
		}
		release()
		ok(t, x.Do(t.Context(), "hot", nothing))
		if before != [3]int{turn, turn, turn} || ran != hot {
			t.Errorf("cold tasks ran after %v hot ones of %d, want one turn of %d", before, ran, turn)
		}
	})
}

// TestConcurrency: Options.Concurrency keys run at the same time, and not more.
func TestConcurrency(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const most = 3
		x := executor(t, &keyed.Options{Concurrency: most})
		var inside, highest atomic.Int32
		meet := make(chan struct{})
		for i := range 20 {
			task := func(context.Context) error {
				if n := inside.Add(1); n > highest.Load() {
					highest.Store(n)
				}
				if i < most {
					<-meet
				}
				inside.Add(-1)
				return nil
			}
			if i <= most { // the last one waits
				go func() { ok(t, x.Do(t.Context(), fmt.Sprint(i), task)) }()
				synctest.Wait()
				continue
			}
			ok(t, x.Go(t.Context(), fmt.Sprint(i), task, nil))
		}
		if load := x.Load(); load.Running != most || load.Queued != 20-most {
			t.Errorf("%+v", load)
		}
		close(meet)
		closed(t, x)
		if n := highest.Load(); n != most {
			t.Errorf("%d tasks at once, want %d", n, most)
		}
	})
}
