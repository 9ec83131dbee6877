package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/observe"
)

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
