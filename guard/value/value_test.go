package value_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/value"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestOnlyTheLastHolderWrites(t *testing.T) {
	run(t, func(w *world) {
		if v, err := w.values.Get(w.Context(), name); err != nil || v.Token != 0 || len(v.Data) > 0 {
			w.Fatalf("before anything was written: %+v, %v", v, err)
		}
		former := w.hold()
		w.mustPut(former, "one")
		w.mustPut(former, "two")
		w.mustHave(former, "two")
		w.space.Revoke(name)
		holder := w.hold()
		w.mustPut(former, "not yet refused: the new holder has not written")
		w.mustPut(holder, "three")
		if !former.Valid() {
			w.Fatal("the former holder knows already, so that this shows nothing")
		}
		err := w.values.Put(w.Context(), former, []byte("late"))
		w.mustFail(err, interlock.Definite, interlock.ErrStaleToken)
		w.mustHave(holder, "three")
	})
}

// TestEndedClaimIsRefusedUnsent with the cause of its end.
func TestEndedClaimIsRefusedUnsent(t *testing.T) {
	run(t, func(w *world) {
		released := w.hold()
		testbed.OK(w, released.Release(w.Context()))
		lost := w.hold()
		w.space.Revoke(name)
		<-lost.Context().Done()
		for c, cause := range map[interlock.Claim]error{
			released: interlock.ErrReleased, lost: interlock.ErrLost, lapsed{lost}: interlock.ErrExpired,
		} {
			w.mustFail(w.values.Put(w.Context(), c, nil), interlock.Definite, cause)
		}
		if n := len(w.flaky.calls); n > 0 {
			w.Fatalf("%d requests for claims that had ended", n)
		}
	})
}

// lapsed is a claim whose time has run out and whose timer has not run yet.
type lapsed struct{ interlock.Claim }

func (lapsed) Valid() bool { return false }

func (lapsed) Context() context.Context { return context.Background() }

// TestLostRepliesConverge: the value is stored although two answers were lost.
func TestLostRepliesConverge(t *testing.T) {
	run(t, func(w *world) {
		c := w.hold()
		w.flaky.before, w.flaky.after = []error{errBusy}, []error{errLost, errLost}
		w.mustPut(c, "data")
		if n := len(w.flaky.calls); n != 4 {
			w.Fatalf("%d requests, want 4", n)
		}
		w.flaky.before = []error{errLost, errBusy}
		w.mustHave(c, "data")
	})
}

// TestAttemptsAreBounded, and pauses grow between them.
func TestAttemptsAreBounded(t *testing.T) {
	run(t, func(w *world) {
		c := w.hold()
		for range 10 {
			w.flaky.before = append(w.flaky.before, errBusy)
		}
		began := time.Now()
		w.mustFail(w.values.Put(w.Context(), c, nil), interlock.Retryable, errBusy)
		if n := len(w.flaky.calls); n != value.DefaultAttempts {
			w.Fatalf("%d requests, want %d", n, value.DefaultAttempts)
		}
		if took := time.Since(began); took < 300*time.Millisecond || took > 6*time.Second {
			w.Fatalf("it gave up after %v", took)
		}
		for i, at := range w.flaky.calls[1:] {
			if gap := at.Sub(w.flaky.calls[i]); gap < 10*time.Millisecond {
				w.Fatalf("a pause of %v", gap)
			}
		}
		w.flaky.before = []error{errBusy, errBusy, errBusy}
		few, err := value.New(w.flaky, &value.Options{Attempts: 2})
		testbed.OK(w, err)
		if _, err := few.Get(w.Context(), name); !errors.Is(err, errBusy) || len(w.flaky.before) != 1 {
			w.Fatalf("%v, and %d failures are left", err, len(w.flaky.before))
		}
	})
}

// TestDoubtStays: after a request without an answer no later refusal reports that
// nothing was stored.
func TestDoubtStays(t *testing.T) {
	run(t, func(w *world) {
		former := w.hold()
		w.space.Revoke(name)
		holder := w.hold()
		w.mustPut(holder, "newer")
		w.flaky.before = []error{errLost}
		w.mustFail(w.values.Put(w.Context(), former, nil), interlock.Uncertain, interlock.ErrStaleToken)
		w.flaky.before = []error{errLost, errBusy, errBusy, errBusy, errBusy, errBusy}
		w.mustFail(w.values.Put(w.Context(), holder, nil), interlock.Uncertain, errBusy)
		w.flaky.before = []error{errBusy}
		w.mustPut(holder, "no doubt")
	})
}

// TestNothingDefiniteIsRepeated.
func TestNothingDefiniteIsRepeated(t *testing.T) {
	run(t, func(w *world) {
		c := w.hold()
		for _, kind := range []interlock.ErrorKind{interlock.Definite, interlock.Bug} {
			w.flaky.calls, w.flaky.before = nil, []error{&interlock.Error{Op: "put value", Kind: kind, Err: errors.New("no")}}
			w.mustFail(w.values.Put(w.Context(), c, nil), kind, nil)
			if n := len(w.flaky.calls); n != 1 {
				w.Fatalf("%d requests after a refusal of kind %v", n, kind)
			}
		}
	})
}

// TestRetriesEndWithTheClaimAndTheContext, whichever is first.
func TestRetriesEndWithTheClaimAndTheContext(t *testing.T) {
	run(t, func(w *world) {
		patient, err := value.New(w.flaky, &value.Options{Attempts: 1000})
		testbed.OK(w, err)
		for range 1000 {
			w.flaky.before = append(w.flaky.before, errBusy)
		}
		c := w.hold()
		cause := errors.New("no more time")
		ctx, cancel := context.WithTimeoutCause(w.Context(), 300*time.Millisecond, cause)
		defer cancel()
		began := time.Now()
		w.mustFail(patient.Put(ctx, c, nil), interlock.Retryable, cause)
		if took := time.Since(began); took != 300*time.Millisecond {
			w.Fatalf("it came back after %v, and had 300 ms", took)
		}
		w.space.Revoke(name)
		err = patient.Put(w.Context(), c, nil)
		if !errors.Is(err, interlock.ErrLost) || time.Since(began) > ttl {
			w.Fatalf("after %v: %v, want the cause of the claim's end", time.Since(began), err)
		}
	})
}

// TestRequestEndsWithTheClaim: Put does not wait for a useless answer.
func TestRequestEndsWithTheClaim(t *testing.T) {
	run(t, func(w *world) {
		w.flaky.Values = silent{w.flaky.Values}
		c := w.hold()
		w.space.Revoke(name)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		w.mustFail(w.values.Put(ctx, c, nil), interlock.Uncertain, interlock.ErrLost)
		if took := time.Since(began); took > ttl {
			w.Fatalf("it came back after %v", took)
		}
	})
}

// silent never answers.
type silent struct{ driver.Values }

func (silent) Put(ctx context.Context, _ string, _ driver.Value) error {
	<-ctx.Done()
	return &interlock.Error{Op: "put value", Kind: interlock.Uncertain, Err: context.Cause(ctx)}
}

func TestWhatIsRefused(t *testing.T) {
	if _, err := value.New(nil, &value.Options{Attempts: -1}); interlock.Kind(err) != interlock.Bug {
		t.Fatalf("negative Attempts: %v", err)
	}
	run(t, func(w *world) {
		long := strings.Repeat("x", driver.MaxName+1)
		c := w.hold()
		w.mustPut(c, strings.Repeat("x", driver.MaxValue))
		w.flaky.calls = nil
		w.mustFail(w.values.Put(w.Context(), c, make([]byte, driver.MaxValue+1)), interlock.Bug, nil)
		w.mustFail(w.values.Put(w.Context(), untaken{c}, nil), interlock.Bug, nil)
		for _, bad := range []string{"", long} {
			w.mustFail(w.values.Put(w.Context(), named{c, bad}, nil), interlock.Bug, interlock.ErrName)
			_, err := w.values.Get(w.Context(), bad)
			w.mustFail(err, interlock.Bug, interlock.ErrName)
			turns := 0
			for _, err := range w.values.Watch(w.Context(), bad) {
				turns++
				w.mustFail(err, interlock.Bug, interlock.ErrName)
			}
			if turns != 1 {
				w.Fatalf("%d turns of a watch that cannot begin", turns)
			}
		}
		if n := len(w.flaky.calls); n > 0 {
			w.Fatalf("%d requests", n)
		}
	})
}

type named struct {
	interlock.Claim
	name string
}

func (n named) Name() string { return n.name }

type untaken struct{ interlock.Claim }

func (untaken) Token() interlock.Token { return 1 }
