package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	_ "github.com/interlock-dev/interlock/driver/memory"
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
