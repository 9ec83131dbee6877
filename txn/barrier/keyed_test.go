package barrier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// shelf is a business in memory with one branch. done has the calls that it received.
type shelf struct {
	refuse, fail bool
	done         []string
}

func (s *shelf) business(ctx context.Context, input []byte) (memory.Business, error) {
	op := branch.From(ctx).Operation
	if string(input) == "unreadable" {
		return nil, errBroken
	}
	return func(result []byte, known bool) ([]byte, error) {
		switch {
		case s.refuse:
			return nil, memory.Refusal("no seat left in row 12")
		case s.fail:
			return nil, errBroken
		}
		s.done = append(s.done, fmt.Sprint(op, " ", string(input), " ", string(result), " ", known))
		return fmt.Appendf(nil, `{"did":%q}`, op), nil
	}, nil
}

// keyed returns a function that calls an operation of a separate branch by a Keyed.
func (s *shelf) keyed(t *testing.T) func(op branch.Operation, input string) (string, error) {
	k := barrier.Keyed[memory.Business]{Barrier: memory.NewBarrier(), Business: s.business}
	return func(op branch.Operation, input string) (string, error) {
		output, err := k.Call(calling(t.Context(), "b", op), []byte(input))
		return string(output), err
	}
}

// TestKeyed: each operation of each protocol runs once, and a repeated call has the first result.
func TestKeyed(t *testing.T) {
	for _, ops := range [][]branch.Operation{
		{branch.Do, branch.Undo}, {branch.Try, branch.Confirm}, {branch.Try, branch.Cancel},
		{branch.Prepare, branch.Commit}, {branch.Prepare, branch.Rollback},
	} {
		var s shelf
		call := s.keyed(t)
		for i, op := range ops {
			want := ""
			if i == 0 {
				want = fmt.Sprintf(`{"did":%q}`, op)
			}
			for range 2 {
				if got, err := call(op, `"in"`); err != nil || got != want {
					t.Errorf("%s: %q, %v, want %q", op, got, err, want)
				}
			}
		}
		want := []string{fmt.Sprint(ops[0], ` "in"  false`), fmt.Sprintf(`%s "in" {"did":%q} true`, ops[1], ops[0])}
		if !slices.Equal(s.done, want) {
			t.Errorf("%q, want %q", s.done, want)
		}
	}
}

// TestKeyedErrors: errors are those of the other forms, and nothing runs.
func TestKeyedErrors(t *testing.T) {
	var s shelf
	call := s.keyed(t)
	_, err := call(branch.Confirm, "")
	wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrViolation)
	var violation *barrier.ViolationError
	if !errors.As(err, &violation) || violation.State != "absent" || violation.Call.Operation != branch.Confirm {
		t.Errorf("%+v", violation)
	}
	_, err = call(branch.Try, "unreadable")
	if !errors.Is(err, errBroken) || len(s.done) > 0 {
		t.Errorf("%v", err)
	}
	ok(t, txntest.Second(call(branch.Try, `1`)))
	_, err = call(branch.Try, `2`)
	var mismatch *barrier.MismatchError
	if wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil); !errors.As(err, &mismatch) {
		t.Errorf("%v", err)
	}
	ok(t, txntest.Second(call(branch.Cancel, "")))
	_, err = call(branch.Try, `1`)
	wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrCancelled)
	if _, err = call(branch.Confirm, ""); !errors.As(err, &violation) || violation.State != string(driver.BarrierUndone) {
		t.Errorf("%v", err)
	}
	if len(s.done) != 2 {
		t.Errorf("%q", s.done)
	}
}

// TestKeyedRefuses: a refusal is permanent.
func TestKeyedRefuses(t *testing.T) {
	s := shelf{refuse: true}
	call := s.keyed(t)
	for range 2 {
		_, err := call(branch.Try, `1`)
		var refused *barrier.RefusedError
		if wantKind(t, err, interlock.Definite, branch.ClassFail, nil); !errors.As(err, &refused) || refused.Reason != "no seat left in row 12" {
			t.Errorf("%v", err)
		}
		s.refuse = false
	}
}

// TestKeyedFailedBusiness: the outcome is unknown, so its undo runs.
func TestKeyedFailedBusiness(t *testing.T) {
	s := shelf{fail: true}
	call := s.keyed(t)
	_, err := call(branch.Try, `1`)
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, errBroken)
	s.fail = false
	_, err = call(branch.Cancel, "")
	if ok(t, err); len(s.done) != 1 || s.done[0] != "cancel   false" {
		t.Errorf("%q", s.done)
	}
}

// TestKeyedForgets: the effect of a call below the mark is unknown.
func TestKeyedForgets(t *testing.T) {
	var s shelf
	b := memory.NewBarrier()
	k := barrier.Keyed[memory.Business]{Barrier: b, Business: s.business}
	ok(t, txntest.Second(b.Forget(t.Context(), begun.Add(time.Millisecond), nil, 1)))
	_, err := k.Call(calling(t.Context(), "b", branch.Try), nil)
	wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
	if len(s.done) > 0 {
		t.Errorf("%q", s.done)
	}
}

// oddStore gives answers that no store of this module gives, or fails.
type oddStore struct {
	driver.Barrier[memory.Business]
	err error
}

func (o oddStore) Call(context.Context, driver.BarrierCall, memory.Business) (driver.BarrierAnswer, error) {
	return driver.BarrierAnswer{Outcome: "perhaps"}, o.err
}

// TestKeyedStoreErrors: a call without an effect can be repeated; after an invalid answer the
// outcome is unknown.
func TestKeyedStoreErrors(t *testing.T) {
	var s shelf
	_, err := barrier.Keyed[memory.Business]{Barrier: oddStore{}, Business: s.business}.Call(calling(t.Context(), "b", branch.Do), nil)
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, nil)
	busy := &interlock.Error{Op: "call", Kind: interlock.Retryable, Err: errBroken}
	_, err = barrier.Keyed[memory.Business]{Barrier: oddStore{err: busy}, Business: s.business}.Call(calling(t.Context(), "b", branch.Do), nil)
	wantKind(t, err, interlock.Retryable, branch.ClassRetry, errBroken)
}

// TestKeyedMisuse sends no request to a store.
func TestKeyedMisuse(t *testing.T) {
	var s shelf
	good := barrier.Keyed[memory.Business]{Barrier: memory.NewBarrier(), Business: s.business}
	do := calling(t.Context(), "b", branch.Do)
	for what, try := range map[string]func() ([]byte, error){
		"no call":      func() ([]byte, error) { return good.Call(t.Context(), nil) },
		"no operation": func() ([]byte, error) { return good.Call(calling(t.Context(), "b", "redo"), nil) },
		"a long name": func() ([]byte, error) {
			return good.Call(calling(t.Context(), strings.Repeat("b", 256), branch.Do), nil)
		},
		"a NUL": func() ([]byte, error) { return good.Call(calling(t.Context(), "b\x00", branch.Do), nil) },
		"no barrier": func() ([]byte, error) {
			return barrier.Keyed[memory.Business]{Business: s.business}.Call(do, nil)
		},
		"no business": func() ([]byte, error) {
			return barrier.Keyed[memory.Business]{Barrier: good.Barrier}.Call(do, nil)
		},
	} {
		_, err := try()
		if err == nil || interlock.Kind(err) != interlock.Bug || len(s.done) > 0 {
			t.Errorf("%s: %v, %q", what, err, s.done)
		}
	}
}

// Seats that are in a store which runs the business itself; on Redis it is a script.
func ExampleKeyed() {
	seats := map[int]bool{12: true}
	k := barrier.Keyed[memory.Business]{
		Barrier: memory.NewBarrier(),
		Business: func(ctx context.Context, input []byte) (memory.Business, error) {
			op := branch.From(ctx).Operation
			var want Seat
			if err := json.Unmarshal(input, &want); err != nil {
				return nil, err
			}
			return func([]byte, bool) ([]byte, error) {
				if op == branch.Try && !seats[want.Row] {
					return nil, memory.Refusal("no seat left")
				}
				seats[want.Row] = op == branch.Cancel
				return json.Marshal(want)
			}, nil
		},
	}
	for _, id := range []string{"trip-1", "trip-1", "trip-2"} {
		call := branch.Call{Transaction: id, Branch: "seat", Operation: branch.Try, Begun: time.Now()}
		hold, err := k.Call(branch.With(context.Background(), call), []byte(`{"Row":12}`))
		fmt.Println(id, string(hold), err)
	}
	// Output:
	// trip-1 {"Row":12} <nil>
	// trip-1 {"Row":12} <nil>
	// trip-2  no seat left
}
