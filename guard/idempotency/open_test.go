package idempotency_test

import (
	"context"
	"testing"

	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

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
