package sequence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestOpen: a sequencer opened by URL has its tables, and delivers in order.
func TestOpen(t *testing.T) {
	deliver := func(context.Context, interlock.SQL, sequence.Delivery) error { return nil }
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		s, err := sequence.Open(t.Context(), open(t).URL, "orders", sequence.Table{}, deliver, nil)
		ok(t, err)
		if got, err := s.Offer(t.Context(), sequence.Event{Key: "order/7", Position: sequence.Position{Seq: 1}}); got != sequence.Delivered || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, databases.Pgx)
	if _, err := sequence.Open(t.Context(), "memory://orders", "orders", sequence.Table{}, deliver, nil); !errors.As(err, new(*backend.URLError)) {
		t.Errorf("a system without tables: %v", err)
	}
}
