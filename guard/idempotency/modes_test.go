package idempotency_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestModesOfMariaDB: the user's sql_mode changes what quotes and empty texts mean,
// and what an assignment sees; the session's time zone is no matter.
func TestModesOfMariaDB(t *testing.T) {
	server := testbed.MariaDB(t)
	for _, mode := range []string{"", "STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL", "ORACLE,SIMULTANEOUS_ASSIGNMENT",
		"ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH"} {
		for _, inlined := range []string{"false", "true"} {
			at := databases.Open(t, server, databases.Maria).URL + "?interpolateParams=" + inlined +
				"&time_zone=" + url.QueryEscape("'-09:30'") + "&sql_mode=" + url.QueryEscape("'"+mode+"'")
			db, closed, err := databases.Connect(t.Context(), databases.Maria, at)
			ok(t, err)
			w := newWorld(t, &databases.DB{BeginnerAt: db, Client: databases.Maria}, nil)
			call := idempotency.Call{Operation: `o'"\`, Key: `k'"\`, Fingerprint: "f"}
			fail := errors.New("fail")
			_, err = w.store.Do(t.Context(), call, func(ctx context.Context) (idempotency.Response, error) {
				_, err := idempotency.Phase(ctx, w.records, `p'"\`, func(context.Context, tx) (string, error) { return "", nil })
				return idempotency.Response{}, errors.Join(err, fail)
			})
			if !errors.Is(err, fail) {
				t.Fatalf("%s: %v", mode, err)
			}
			for i := range 2 {
				got, err := w.store.Do(t.Context(), call, func(ctx context.Context) (idempotency.Response, error) {
					if n := idempotency.From(ctx).Attempt(); n != 2 {
						t.Errorf("%s: attempt %d", mode, n)
					}
					_, err := idempotency.Phase(ctx, w.records, `p'"\`, func(context.Context, tx) (string, error) { return "", fail })
					return idempotency.Response{}, err
				})
				if err != nil || got.Replayed != (i == 1) || len(got.Body) > 0 {
					t.Errorf("%s: %+v, %v", mode, got, err)
				}
			}
			closed()
		}
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
