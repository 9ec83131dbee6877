package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestBadCallsAreBugs(t *testing.T) {
	s := open(t, memory.NewIdempotency(), nil)
	for what, spoil := range map[string]func(*idempotency.Call){
		"no key":              func(c *idempotency.Call) { c.Key = "" },
		"a key too long":      func(c *idempotency.Call) { c.Key = strings.Repeat("k", 256) },
		"a key with NUL":      func(c *idempotency.Call) { c.Key = "k\x00" },
		"a key in no UTF-8":   func(c *idempotency.Call) { c.Key = "\xff" },
		"no operation":        func(c *idempotency.Call) { c.Operation = "" },
		"a scope too long":    func(c *idempotency.Call) { c.Scope = strings.Repeat("s", 256) },
		"no fingerprint":      func(c *idempotency.Call) { c.Fingerprint = "" },
		"a large fingerprint": func(c *idempotency.Call) { c.Fingerprint = strings.Repeat("f", 256) },
		"bytes, not a text":   func(c *idempotency.Call) { c.Fingerprint = "\xff" },
		"an input too large":  func(c *idempotency.Call) { c.Input = make([]byte, idempotency.MaxInput+1) },
	} {
		call := order("k")
		spoil(&call)
		if _, err := s.Do(t.Context(), call, never); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := s.Do(t.Context(), order("k"), nil)
	wantKind(t, err, interlock.Bug, nil)
	for _, o := range []idempotency.Options{{Lease: time.Millisecond}, {Lease: 2 * time.Hour}, {Lease: -1}, {Retention: time.Millisecond}, {Retention: -1}, {MaxAnswer: -1}} {
		_, err := idempotency.New(memory.NewIdempotency(), &o)
		wantKind(t, err, interlock.Bug, nil)
	}
	_, err = idempotency.New(nil, nil)
	wantKind(t, err, interlock.Bug, nil)
	for _, name := range []string{"a.b.c", strings.Repeat("t", 70), "\x00", "."} {
		err := idempotency.Table{Name: name}.Create(t.Context(), deaf{driver.Postgres})
		wantKind(t, err, interlock.Bug, interlock.ErrName)
	}
	wantKind(t, idempotency.Table{}.Create(t.Context(), deaf{"oracle"}), interlock.Bug, nil)
}

// deaf is SQL that must receive no request.
type deaf struct{ dialect driver.Dialect }

func (d deaf) Dialect() driver.Dialect { return d.dialect }

func (deaf) Exec(context.Context, string, ...any) (int64, error) { return 0, errors.New("asked") }

func (deaf) Query(context.Context, string, []any, func(func(...any) error) error) error {
	return errors.New("asked")
}

// TestPhasesOutOfPlace: outside of a request, inside of another phase, after the
// request, under no name, or on other records.
func TestPhasesOutOfPlace(t *testing.T) {
	s := open(t, memory.NewIdempotency(), nil)
	step := func(ctx context.Context, name string) error {
		_, err := idempotency.Step(ctx, name, func(ctx context.Context) (int, error) { return 1, nil })
		return err
	}
	elsewhere := idempotency.NewSQL[tx](nil, idempotency.Table{})
	wantKind(t, step(t.Context(), "s"), interlock.Bug, nil)
	var kept context.Context
	_, err := s.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		kept = ctx
		for _, name := range []string{"", strings.Repeat("n", 101), "\xff"} { // JSON would change the last one
			wantKind(t, step(ctx, name), interlock.Bug, interlock.ErrName)
		}
		_, err := idempotency.Phase(ctx, elsewhere, "p", func(context.Context, tx) (int, error) { return 1, nil })
		wantKind(t, err, interlock.Bug, nil)
		_, err = idempotency.LastPhase(ctx, elsewhere, func(context.Context, tx) (idempotency.Response, error) { return answer(200, ""), nil })
		wantKind(t, err, interlock.Bug, nil)
		_, err = idempotency.Step(ctx, "outer", func(ctx context.Context) (int, error) { return 1, step(ctx, "inner") })
		wantKind(t, err, interlock.Bug, nil)
		return answer(200, ""), step(ctx, "s")
	})
	ok(t, err)
	wantKind(t, step(kept, "late"), interlock.Bug, nil)
	if idempotency.From(t.Context()) != nil {
		t.Error("a context of nothing has a request")
	}
}

// TestPhaseWaitsWithItsContext: a phase begun inside another with the outer context waits for
// itself, until that context or the request's ends.
func TestPhaseWaitsWithItsContext(t *testing.T) {
	cause := errors.New("the time is over")
	minute := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, time.Minute, cause)
	}
	nested := func(ctx context.Context) (idempotency.Response, error) {
		_, err := idempotency.Step(ctx, "outer", func(context.Context) (int, error) {
			return idempotency.Step(ctx, "inner", func(context.Context) (int, error) { return 1, nil })
		})
		return answer(200, ""), err
	}
	for name, do := range map[string]func(context.Context, *idempotency.Store) error{
		"the request's": func(ctx context.Context, s *idempotency.Store) error {
			ctx, cancel := minute(ctx)
			defer cancel()
			_, err := s.Do(ctx, order("k"), func(ctx context.Context) (idempotency.Response, error) {
				return nested(context.WithoutCancel(ctx))
			})
			return err
		},
		"its own": func(ctx context.Context, s *idempotency.Store) error {
			_, err := s.Do(ctx, order("k"), func(ctx context.Context) (idempotency.Response, error) {
				ctx, cancel := minute(ctx)
				defer cancel()
				return nested(ctx)
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				began := time.Now()
				wantKind(t, do(t.Context(), open(t, memory.NewIdempotency(), nil)), interlock.Definite, cause)
				if time.Since(began) != time.Minute {
					t.Errorf("after %v", time.Since(began))
				}
			})
		})
	}
}

// TestStepsAreRemembered: a step runs once by name; later calls return its result, on any store.
func TestStepsAreRemembered(t *testing.T) {
	s := open(t, memory.NewIdempotency(), nil)
	runs, fail := 0, errors.New("fail")
	work := func(broken bool) idempotency.Func {
		return func(ctx context.Context) (idempotency.Response, error) {
			var said []string
			for _, name := range []string{"a", "b", "a"} {
				r, err := idempotency.Step(ctx, name, func(context.Context) ([]string, error) {
					runs++
					if broken && name == "b" {
						return nil, fail
					}
					return []string{name, idempotency.From(ctx).Scope()}, nil
				})
				if err != nil {
					return idempotency.Response{}, err
				}
				said = append(said, r...)
			}
			return answer(200, strings.Join(said, " ")), nil
		}
	}
	if _, err := s.Do(t.Context(), order("k"), work(true)); !errors.Is(err, fail) {
		t.Error(err)
	}
	got, err := s.Do(t.Context(), order("k"), work(false))
	if wantAnswer(t, got, err, "a alice b alice a alice", false); runs != 3 {
		t.Errorf("%d runs", runs)
	}
}

// TestDeclineAfterAPhase leaves the request unfinished: it has had an effect.
func TestDeclineAfterAPhase(t *testing.T) {
	records := memory.NewIdempotency()
	s := open(t, records, nil)
	_, err := s.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		_, err := idempotency.Step(ctx, "a", func(context.Context) (int, error) { return 1, nil })
		idempotency.From(ctx).Decline()
		return answer(422, ""), err
	})
	ok(t, err)
	found, err := records.Unfinished(t.Context(), anyUnfinished)
	if err != nil || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	other := order("k")
	other.Fingerprint = "other"
	_, err = s.Do(t.Context(), other, never)
	as[*idempotency.MismatchError](t, err)
}
