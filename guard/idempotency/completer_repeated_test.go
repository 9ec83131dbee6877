package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// repeated is records of which a listed request is given up, and then sent again, by
// its client, before the one that listed it comes back for it.
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

// TestPhaseOfARepeatedRequest: a completer, or a reaper that discards, has an old
// record on its list, which had attempts that did nothing. Its client gave the
// request up, and sent it again: this time a phase was done. That is not forgotten.
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
