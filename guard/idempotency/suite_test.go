package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestRecordsInSQL runs the suite on databases, without lost replies, which testCommitInDoubt
// tests.
func TestRecordsInSQL(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		var tables atomic.Int64
		drivertest.RunIdempotency(t, drivertest.IdempotencyHarness{
			Start: func(t *testing.T, _ bool) drivertest.IdempotencyBackend {
				table := idempotency.Table{Name: fmt.Sprint("requests", tables.Add(1))}
				db.Do(t, table.Create)
				return inSQL{db, table}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		})
	})
}

type inSQL struct {
	*databases.DB
	table idempotency.Table
}

func (s inSQL) Open(*testing.T) (driver.Idempotency, error) {
	return idempotency.NewSQL(s.DB, s.table), nil
}

func (s inSQL) Beside(t *testing.T) (driver.Idempotency, error) { return s.Open(t) }

func (s inSQL) Faults() drivertest.Faults { return nil }

// TestOpen: a store opened by URL answers a repeated request, and has phases in a
// database.
func TestOpen(t *testing.T) {
	testOpen(t, "memory://requests")
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) { testOpen(t, open(t).URL) }, databases.Pgx)
	if s, err := idempotency.Open(t.Context(), "kafka://requests", nil); err == nil {
		t.Error(s)
	}
}

func testOpen(t *testing.T, url string) {
	s, err := idempotency.Open(t.Context(), url, nil)
	testbed.OK(t, err)
	ran := 0
	for _, replayed := range []bool{false, true} {
		r, err := s.Do(t.Context(), idempotency.Call{Scope: "shop", Operation: "pay", Key: "1", Fingerprint: "f"}, func(ctx context.Context) (r idempotency.Response, err error) {
			ran++
			if s.Tables() != nil {
				_, err = idempotency.Phase(ctx, s.Tables(), "charge", func(context.Context, tx) (int, error) { return 1, nil })
			}
			return idempotency.Response{Status: 200}, err
		})
		if err != nil || r.Replayed != replayed || ran != 1 {
			t.Errorf("%+v, %v after %d runs; want replayed %v", r, err, ran, replayed)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHooksAreTold: hooks receive the outcome of each request.
func TestHooksAreTold(t *testing.T) {
	var told []observe.IdempotencyAnswered
	s := open(t, memory.NewIdempotency(), &idempotency.Options{Hooks: &observe.Idempotency{
		Answered: func(e observe.IdempotencyAnswered) { told = append(told, e) }}})
	fail := errors.New("fail")
	for _, fn := range []idempotency.Func{
		func(context.Context) (idempotency.Response, error) { return idempotency.Response{}, fail },
		func(ctx context.Context) (idempotency.Response, error) {
			idempotency.From(ctx).Decline()
			return answer(422, ""), nil
		},
		func(context.Context) (idempotency.Response, error) { return answer(200, ""), nil },
		never, nil,
	} {
		_, _ = s.Do(t.Context(), order("k"), fn)
	}
	want := []observe.IdempotencyAnswered{{Attempt: 1, Err: fail}, {Attempt: 2}, {Attempt: 1, Kept: true}, {Replayed: true, Kept: true}, {}}
	for i, e := range told {
		if i == 4 && e.Err != nil {
			e.Err = nil // it needs a function
		}
		if e.Took < 0 || e.Took > time.Minute || e.Scope != "alice" || e.Operation != "POST /orders" || e.Key != "k" {
			t.Errorf("%+v", e)
		}
		e.Took, e.Scope, e.Operation, e.Key = 0, "", "", ""
		if i >= len(want) || e != want[i] {
			t.Errorf("%d: %+v", i, e)
		}
	}
	if len(told) != len(want) {
		t.Errorf("told %d", len(told))
	}
}

// TestSQL runs every test on each database by each client.
func TestSQL(t *testing.T) {
	tests := []struct {
		name string
		test func(*testing.T, world)
	}{
		{"costs", testCosts},
		{"an overtaken attempt commits nothing", testOvertaken},
		{"duplicates are not kept waiting by a phase", testNotBlocked},
		{"a completer finishes what was left", testCompleterFinishes},
		{"a reaper removes what is old, and reports what is unfinished", testReaper},
		{"a commit of unknown outcome is looked up", testCommitInDoubt},
		{"a doubt that lasts is looked up before the next phase", testDoubtThatLasts},
		{"the last doubt is no answer", testLastDoubtIsNoAnswer},
		{"a connection that is silent", testSilentBegin},
		{"a connection that is lost in a phase", testLostConnection},
		{"every level of isolation", testIsolation},
		{"a handler's last phase is its answer", testLastPhaseOverHTTP},
		{"a clock that was set back loses nothing", testClockSetBack},
		{"results survive, or the phase does not", testResults},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, newWorld(t, open(t), nil))
			})
		}
	})
}

// testCosts: a claim is one statement, its bound and one commit; a phase is one commit; a finish in
// the last phase is none; a replay is one.
func testCosts(t *testing.T, w world) {
	const step = "1 begun, 2 statements, 1 commits"
	c := &databases.Counted{BeginnerAt: w.DB}
	records := idempotency.NewSQL[tx](c, idempotency.Table{})
	store := open(t, records, nil)
	want := func(what, wanted string) {
		t.Helper()
		if got := cost(c); got != wanted {
			t.Errorf("%s: %s, want %s", what, got, wanted)
		}
	}
	folded := func(ctx context.Context) (idempotency.Response, error) {
		want("claim", step)
		return idempotency.LastPhase(ctx, records, func(ctx context.Context, db tx) (idempotency.Response, error) {
			return answer(200, "done"), effect(ctx, db, "k", "last", 1)
		})
	}
	got, err := store.Do(t.Context(), order("k"), folded)
	wantAnswer(t, got, err, "done", false)
	want("the last phase with the finish", "1 begun, 3 statements, 1 commits") // the bound, the effect, the record
	got, err = store.Do(t.Context(), order("k"), never)
	wantAnswer(t, got, err, "done", true)
	want("a replay", step)

	plain := func(ctx context.Context) (idempotency.Response, error) {
		want("claim", step)
		_, err := phase(ctx, records, "pay")
		want("a phase", "1 begun, 3 statements, 1 commits")
		return answer(200, "done"), err
	}
	got, err = store.Do(t.Context(), order("l"), plain)
	wantAnswer(t, got, err, "done", false)
	want("a finish of its own", step)
}

// testOvertaken: an attempt's lease expires during a phase. A retry completes the request; later
// commits and answers of the first attempt are rejected.
func testOvertaken(t *testing.T, w world) {
	began, release := make(chan struct{}), make(chan struct{})
	type result struct {
		phase, do error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		_, r.do = w.store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
			_, r.phase = idempotency.Phase(context.WithoutCancel(ctx), w.records, "pay", func(ctx context.Context, db tx) (string, error) {
				close(began)
				<-release
				return "", effect(context.WithoutCancel(ctx), db, "k", "pay", 1)
			})
			return answer(200, "stale"), nil
		})
		done <- r
	}()
	<-began
	w.lapse(t)
	got, err := w.store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		s, err := phase(ctx, w.records, "pay")
		return answer(200, s), err
	})
	wantAnswer(t, got, err, "pay of attempt 2", false)
	close(release)
	r := <-done
	wantKind(t, r.phase, interlock.Definite, interlock.ErrLost)
	wantKind(t, r.do, interlock.Definite, interlock.ErrLost)
	if got := w.effects(t, "k"); got != "pay by 2" {
		t.Errorf("effects: %s", got)
	}
	got, err = w.store.Do(t.Context(), order("k"), never)
	wantAnswer(t, got, err, "pay of attempt 2", true)
}

// lapse ends every lease, as if its time had passed.
func (w world) lapse(t testing.TB) {
	t.Helper()
	w.Exec(t, lapsed[w.Dialect])
}

// testNotBlocked: while a phase runs, a duplicate is refused at once.
func testNotBlocked(t *testing.T, w world) {
	_, err := w.store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		return answer(200, ""), inPhase(ctx, w, func() {
			began := time.Now()
			_, err := w.store.Do(t.Context(), order("k"), never)
			if e := as[*idempotency.InFlightError](t, err); e != nil && (e.Attempt != 1 || e.Remaining <= 0 || e.Remaining > 30*time.Second) {
				t.Errorf("%+v", e)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
	ok(t, err)
}

func inPhase(ctx context.Context, w world, fn func()) error {
	_, err := idempotency.Phase(ctx, w.records, "pay", func(ctx context.Context, db tx) (string, error) {
		err := effect(ctx, db, "k", "pay", 1)
		fn()
		return "", err
	})
	return err
}
