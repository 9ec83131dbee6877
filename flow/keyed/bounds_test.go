package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

// TestFull: a task beyond a bound is rejected with a FullError, others are accepted.
func TestFull(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var refused []observe.KeyedRefused
		x := executor(t, &keyed.Options{Concurrency: 1, PerKey: 2, Total: 3,
			Observe: &observe.Keyed{Refused: func(r observe.KeyedRefused) { refused = append(refused, r) }}})
		release := stuck(t, x, "a")
		for range 2 {
			ok(t, x.Go(t.Context(), "a", nothing, nil))
		}
		var full *keyed.FullError
		if err := x.Go(t.Context(), "a", nothing, nil); !errors.As(err, &full) || full.All {
			t.Errorf("a third while there is room for others: %v", err)
		}
		ok(t, x.Go(t.Context(), "b", nothing, nil))
		for key, want := range map[string]keyed.FullError{
			"a": {Key: "a", Queued: 2}, "b": {Key: "b", All: true, Queued: 3}, "c": {Key: "c", All: true, Queued: 3},
		} {
			for name, err := range map[string]error{
				"go": x.Go(t.Context(), key, nothing, func(error) { t.Error("received a task that was not taken") }),
				"do": x.Do(t.Context(), key, nothing),
			} {
				var full *keyed.FullError
				if !errors.As(err, &full) || *full != want || interlock.Kind(err) != interlock.Retryable {
					t.Errorf("%s %s: %v, want %v", name, key, err, &want)
				}
			}
		}
		if load := x.Load(); load != (keyed.Load{Running: 1, Queued: 3, Keys: 2}) {
			t.Errorf("%+v", load)
		}
		if len(refused) != 7 || refused[0].Err == nil {
			t.Errorf("observed %v", refused)
		}
		release()
		ok(t, x.Close(t.Context()))
	})
}

// TestWaitingForRoom: first come first served, also within a key while the executor is full. A caller
// that leaves admits the next one.
func TestWaitingForRoom(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 1, PerKey: 2, Total: 3, Wait: true})
		release := stuck(t, x, "a")
		var ran []string
		var mu sync.Mutex
		taken := map[string]bool{}
		task := func(name string) func(context.Context) error {
			return func(context.Context) error { ran = append(ran, name); return nil }
		}
		impatient, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		for i, name := range []string{"a1", "a2", "a3", "b1", "b2", "a4", "b3"} {
			ctx := t.Context()
			if i == 2 {
				ctx = impatient
			}
			go func() {
				err := x.Go(ctx, name[:1], task(name), nil)
				if i == 2 {
					wantKind(t, err, interlock.Definite, context.DeadlineExceeded)
				} else if err != nil {
					t.Error(name, err)
				}
				mu.Lock()
				taken[name] = err == nil
				mu.Unlock()
			}()
			synctest.Wait()
		}
		if got := fmt.Sprint(taken); got != "map[a1:true a2:true b1:true]" {
			t.Errorf("taken: %s", got)
		}
		if load := x.Load(); load.Waiting != 4 || load.Queued != 3 {
			t.Errorf("%+v", load)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(taken) != 4 || taken["a3"] {
			t.Errorf("a3 waits no more, taken: %v", taken)
		}
		release()
		ok(t, x.Do(t.Context(), "b", task("b4")))
		synctest.Wait()
		if got := strings.Join(ran, " "); got != "a1 a2 a4 b1 b2 b3 b4" {
			t.Errorf("ran %s", got)
		}
	})
}

// TestDoWaitsForRoom: a Do that waits for room returns when its task or its context has ended.
func TestDoWaitsForRoom(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 1, PerKey: 1, Total: 1, Wait: true})
		release := stuck(t, x, "a")
		results := make(chan error, 3)
		for _, key := range []string{"a", "a", "b"} {
			go func() { results <- x.Do(t.Context(), key, nothing) }()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantKind(t, x.Do(short, "a", nothing), interlock.Definite, context.DeadlineExceeded)
		release()
		for range 3 {
			ok(t, <-results)
		}
	})
}

// TestNoMemoryPerIdleKey: after 50,000 keys the heap has not grown by 20 bytes for each.
func TestNoMemoryPerIdleKey(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const keys = 50_000
		x := executor(t, &keyed.Options{Wait: true})
		visit := func(from, to int) {
			for i := from; i < to; i++ {
				key := "customer/" + strconv.Itoa(i)
				if i%2 == 0 {
					ok(t, x.Do(t.Context(), key, nothing))
				} else {
					ok(t, x.Go(t.Context(), key, nothing, nil))
				}
			}
			if synctest.Wait(); x.Load() != (keyed.Load{}) {
				t.Errorf("%+v of idle keys", x.Load())
			}
		}
		visit(0, keys/50) // as much as there is in use at once
		before := heap()
		visit(keys/50, keys)
		if grown := int64(heap()) - int64(before); grown > 1<<20 {
			t.Errorf("the heap has grown by %d bytes over %d keys", grown, keys)
		}
		runtime.KeepAlive(x)
	})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestBadInput: invalid input is an error, and nothing runs.
func TestBadInput(t *testing.T) {
	x := executor(t, nil)
	never := func(context.Context) error { t.Error("it ran"); return nil }
	for _, key := range []string{"", strings.Repeat("x", 513)} {
		wantKind(t, x.Do(t.Context(), key, never), interlock.Bug, interlock.ErrName)
		wantKind(t, x.Go(t.Context(), key, never, nil), interlock.Bug, interlock.ErrName)
	}
	wantKind(t, x.Do(t.Context(), "k", nil), interlock.Bug, nil)
	wantKind(t, x.Go(t.Context(), "k", nil, nil), interlock.Bug, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantKind(t, x.Do(ended, "k", never), interlock.Definite, context.Canceled)
	wantKind(t, x.Go(ended, "k", never, nil), interlock.Definite, context.Canceled)
	for _, o := range []keyed.Options{{Concurrency: -1}, {PerKey: -1}, {Total: -1}, {Turn: -1}} {
		_, err := keyed.NewExecutor(&o)
		wantKind(t, err, interlock.Bug, nil)
	}
	_, err := keyed.NewBatches[int](1, nil, nil)
	wantKind(t, err, interlock.Bug, nil)
	for _, most := range []int{0, -1, 1<<16 + 1} {
		_, err := keyed.NewBatches(most, func(context.Context, string, []int) error { return nil }, nil)
		wantKind(t, err, interlock.Bug, nil)
	}
}
