package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

// testCompleterFinishes an abandoned request after its last phase, with the stored input;
// the client's late retry gets that answer.
func testCompleterFinishes(t *testing.T, w world) {
	work := func(broken bool) idempotency.Func {
		return func(ctx context.Context) (idempotency.Response, error) {
			paid, err := phase(ctx, w.records, "pay")
			if err != nil || broken {
				return idempotency.Response{}, errors.Join(err, errors.New("crashed"))
			}
			sent, err := phase(ctx, w.records, "send")
			return answer(200, fmt.Sprintf("%s, %s: %s", paid, sent, idempotency.From(ctx).Input())), err
		}
	}
	call, other := order("k"), order("other")
	call.Input, other.Operation = []byte("three books"), "POST /refunds"
	for _, c := range []idempotency.Call{call, other} {
		if _, err := w.store.Do(t.Context(), c, work(true)); err == nil {
			t.Fatal("it did not fail")
		}
	}
	c := idempotency.NewCompleter(w.store, map[string]idempotency.Func{"POST /orders": work(false)}, &idempotency.CompleterOptions{After: time.Millisecond})
	testbed.Eventually(t, "it is finished", bound, func() bool {
		n, err := c.Pass(t.Context())
		ok(t, err)
		return n == 1
	})
	if n, err := c.Pass(t.Context()); n != 0 || err != nil {
		t.Errorf("%d finished again, %v", n, err)
	}
	got, err := w.store.Do(t.Context(), call, never)
	wantAnswer(t, got, err, "pay of attempt 1, send of attempt 2: three books", true)
	if got := w.effects(t, "k") + "; " + w.effects(t, "other"); got != "pay by 1, send by 2; pay by 1" {
		t.Errorf("effects: %s", got)
	}
}

// TestCompleterIsBounded by age, attempts and batch; failures are reported, and retried.
func TestCompleterIsBounded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var told []observe.IdempotencyUnfinished
		records := memory.NewIdempotency()
		s := open(t, records, &idempotency.Options{Hooks: &observe.Idempotency{
			Unfinished: func(e observe.IdempotencyUnfinished) { told = append(told, e) }}})
		fail := errors.New("still broken")
		runs := map[string]int{}
		work := func(ctx context.Context) (idempotency.Response, error) {
			runs[idempotency.From(ctx).Key()]++
			return idempotency.Response{}, fail
		}
		for i := range 5 {
			if _, err := s.Do(t.Context(), order(fmt.Sprint(i)), work); !errors.Is(err, fail) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		c := idempotency.NewCompleter(s, map[string]idempotency.Func{"POST /orders": work}, &idempotency.CompleterOptions{Attempts: 4, Batch: 3})
		pass := func() {
			if n, err := c.Pass(t.Context()); n != 0 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		pass()
		if len(told) > 0 {
			t.Errorf("too early: %+v", told)
		}
		time.Sleep(time.Minute)
		pass()
		if got := fmt.Sprint(runs); got != "map[0:2 1:2 2:2 3:1 4:1]" || len(told) != 3 || !errors.Is(told[0].Err, fail) || told[0].Attempt != 1 || told[0].Discarded {
			t.Errorf("runs %s, told %+v", got, told)
		}
		for range 10 {
			time.Sleep(2 * time.Minute)
			pass()
		}
		if all := slices.Sorted(maps.Values(runs)); fmt.Sprint(all) != "[4 4 4 4 4]" {
			t.Errorf("runs %v", all)
		}
	})
}

// TestCompleterLeavesWhatIsForgotten: between the list and the claim, a request was
// declined. It is not created again.
func TestCompleterLeavesWhatIsForgotten(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		records := memory.NewIdempotency()
		s := open(t, records, nil)
		for _, key := range []string{"a", "b"} {
			_, _ = s.Do(t.Context(), order(key), func(context.Context) (idempotency.Response, error) {
				return idempotency.Response{}, errors.New("crashed")
			})
		}
		time.Sleep(time.Hour)
		ran := ""
		c := idempotency.NewCompleter(s, map[string]idempotency.Func{"POST /orders": func(ctx context.Context) (idempotency.Response, error) {
			key := idempotency.From(ctx).Key()
			ran += key
			other := map[string]string{"a": "b", "b": "a"}[key] // the other listed request
			_, err := s.Do(ctx, order(other), func(ctx context.Context) (idempotency.Response, error) {
				idempotency.From(ctx).Decline()
				return answer(422, ""), nil
			})
			return answer(200, ""), err
		}}, nil)
		if n, err := c.Pass(t.Context()); n != 1 || err != nil || len(ran) != 1 {
			t.Errorf("%d finished, %v; ran %q", n, err, ran)
		}
		other := strings.Trim("ab", ran)
		got, err := s.Do(t.Context(), order(other), func(ctx context.Context) (idempotency.Response, error) {
			return answer(200, fmt.Sprint(idempotency.From(ctx).Attempt())), nil
		})
		wantAnswer(t, got, err, "1", false)
	})
}

// TestRunsUntilTheEnd: Run of both makes passes, continues after a failed one, and ends
// with its context.
func TestRunsUntilTheEnd(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := open(t, memory.NewIdempotency(), &idempotency.Options{Retention: time.Minute})
		_, err := s.Do(t.Context(), order("old"), func(context.Context) (idempotency.Response, error) { return answer(200, ""), nil })
		ok(t, err)
		failures := 3
		work := func(context.Context) (idempotency.Response, error) {
			if failures--; failures >= 0 {
				return idempotency.Response{}, errors.New("not yet")
			}
			return answer(200, "at last"), nil
		}
		_, _ = s.Do(t.Context(), order("k"), work)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		go func() {
			ended <- idempotency.NewCompleter(s, map[string]idempotency.Func{"POST /orders": work}, nil).Run(ctx)
		}()
		go func() { ended <- idempotency.NewReaper(s, nil).Run(ctx) }()
		time.Sleep(10 * time.Minute)
		got, err := s.Do(t.Context(), order("k"), never)
		// The answer was kept for a minute, and then reaped: it is a new request.
		if err == nil || got.Replayed {
			t.Errorf("%+v, %v", got, err)
		}
		cause := errors.New("shutdown")
		cancel(cause)
		for range 2 {
			if err := <-ended; !errors.Is(err, cause) {
				t.Error(err)
			}
		}
	})
}

// TestLongestInterval: a reaper makes one pass.
func TestLongestInterval(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var passes atomic.Int64
		s := open(t, memory.NewIdempotency(), &idempotency.Options{Hooks: &observe.Idempotency{Reaped: func(observe.IdempotencyReaped) { passes.Add(1) }}})
		ctx, cancel := context.WithCancel(t.Context())
		var reapers sync.WaitGroup
		for range 20 { // their pauses are random
			reapers.Go(func() { _ = idempotency.NewReaper(s, &idempotency.ReaperOptions{Interval: math.MaxInt64}).Run(ctx) })
		}
		time.Sleep(time.Hour)
		cancel()
		reapers.Wait()
		if n := passes.Load(); n != 20 {
			t.Errorf("%d passes of 20 reapers", n)
		}
	})
}

// testReaper removes old records in batches, reports unfinished ones, and removes those
// only with an option.
func testReaper(t *testing.T, w world) {
	var told []observe.IdempotencyUnfinished
	hooks := &observe.Idempotency{Unfinished: func(e observe.IdempotencyUnfinished) { told = append(told, e) }}
	s := open(t, w.records, &idempotency.Options{Retention: time.Second, Hooks: hooks})
	for i := range 5 {
		_, err := s.Do(t.Context(), order(fmt.Sprint("done", i)), func(context.Context) (idempotency.Response, error) { return answer(200, ""), nil })
		ok(t, err)
	}
	_, _ = s.Do(t.Context(), order("crashed"), func(context.Context) (idempotency.Response, error) {
		return idempotency.Response{}, errors.New("crashed")
	})
	lenient := idempotency.NewReaper(s, &idempotency.ReaperOptions{Batch: 2, Overdue: time.Millisecond})
	removed := 0
	testbed.Eventually(t, "five are removed", bound, func() bool {
		report, err := lenient.Pass(t.Context())
		ok(t, err)
		removed += report.Removed
		return removed >= 5 && report.Unfinished == 1 && report.Discarded == 0
	})
	if n := len(told); removed != 5 || n == 0 || told[n-1].Key != "crashed" || told[n-1].Discarded || told[n-1].Age <= 0 || told[n-1].Lapsed <= 0 {
		t.Errorf("%d removed, told %+v", removed, told)
	}
	report, err := idempotency.NewReaper(s, &idempotency.ReaperOptions{Overdue: time.Millisecond, Discard: time.Millisecond}).Pass(t.Context())
	if err != nil || report.Discarded != 1 || report.Unfinished != 0 || !told[len(told)-1].Discarded {
		t.Errorf("%+v, %v", report, err)
	}
	if found, err := w.records.Unfinished(t.Context(), anyUnfinished); err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// repeated is records in which the client gives up a listed request and sends it again, before the
// process that listed it claims it.
type repeated struct {
	driver.Idempotency
	meanwhile func()
}

func (m *repeated) Unfinished(ctx context.Context, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error) {
	found, err := m.Idempotency.Unfinished(ctx, q)
	if m.meanwhile != nil && len(found) > 0 {
		m.meanwhile()
		m.meanwhile = nil
	}
	return found, err
}

// TestPhaseOfARepeatedRequest: a completer, or a discarding reaper, lists an old record whose
// attempts did nothing. Its client gives the request up and sends it again, and a phase commits.
// That record is not removed.
func TestPhaseOfARepeatedRequest(t *testing.T) {
	passes := map[string]func(*testing.T, *idempotency.Store, idempotency.Func) error{
		"completer": func(t *testing.T, s *idempotency.Store, fn idempotency.Func) error {
			_, err := idempotency.NewCompleter(s, map[string]idempotency.Func{"POST /orders": fn}, nil).Pass(t.Context())
			return err
		},
		"reaper": func(t *testing.T, s *idempotency.Store, _ idempotency.Func) error {
			report, err := idempotency.NewReaper(s, &idempotency.ReaperOptions{Discard: time.Hour}).Pass(t.Context())
			if report.Discarded != 0 {
				t.Errorf("%+v", report)
			}
			return err
		},
	}
	for who, pass := range passes {
		t.Run(who, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				records := &repeated{Idempotency: memory.NewIdempotency()}
				s := open(t, records, nil)
				crashed, paid := errors.New("crashed"), 0
				crash := func(context.Context) (idempotency.Response, error) { return idempotency.Response{}, crashed }
				pay := func(ctx context.Context) (idempotency.Response, error) {
					_, err := idempotency.Step(ctx, "pay", func(context.Context) (int, error) { paid++; return paid, nil })
					return answer(200, "paid"), err
				}
				try := func(fn idempotency.Func) {
					_, _ = s.Do(t.Context(), order("k"), fn)
				}
				for range 5 {
					try(crash)
				}
				time.Sleep(2 * time.Hour)
				records.meanwhile = func() {
					try(func(ctx context.Context) (idempotency.Response, error) {
						idempotency.From(ctx).Decline()
						return answer(422, ""), nil
					})
					try(func(ctx context.Context) (idempotency.Response, error) {
						_, err := pay(ctx)
						return answer(200, ""), errors.Join(err, crashed)
					})
				}
				ok(t, pass(t, s, pay))
				if _, err := s.Do(t.Context(), order("k"), pay); err != nil || paid != 1 {
					t.Errorf("paid %d times, %v", paid, err)
				}
			})
		})
	}
}
