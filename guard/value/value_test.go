package value_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

// seen records the values of a watch.
type seen struct {
	data []string
	err  error
}

// watch collects until ctx ends, with a pause after each turn.
func (w *world) watch(ctx context.Context, pause time.Duration) (*seen, chan struct{}) {
	s, done := &seen{}, make(chan struct{})
	go func() {
		defer close(done)
		var last interlock.Token
		for v, err := range w.values.Watch(ctx, name) {
			if s.err != nil {
				w.Errorf("another turn after an error: %q, %v", v.Data, err)
			}
			if s.err = err; err != nil {
				continue
			}
			if v.Token < last {
				w.Errorf("token %d came after %d", v.Token, last)
			}
			last = v.Token
			s.data = append(s.data, string(v.Data))
			time.Sleep(pause)
		}
	}()
	return s, done
}

func (w *world) mustSee(s *seen, want ...string) {
	w.Helper()
	synctest.Wait()
	if !slices.Equal(s.data, want) || s.err != nil {
		w.Fatalf("seen are %q, %v; want %q", s.data, s.err, want)
	}
}

// interrupt has the watch that is open return err.
func (w *world) interrupt(err error) {
	w.Helper()
	select {
	case w.flaky.breaks <- err:
	case <-time.After(time.Minute):
		w.Fatal("no watch is open")
	}
}

func TestWatchYieldsEveryValueAndTheCauseOfItsEnd(t *testing.T) {
	run(t, func(w *world) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(w.Context())
		s, done := w.watch(ctx, 0)
		w.mustSee(s, "")
		c := w.hold()
		w.mustPut(c, "one")
		w.mustSee(s, "", "one")
		w.mustPut(c, "two")
		w.mustSee(s, "", "one", "two")
		w.space.Revoke(name)
		w.mustPut(w.hold(), "three")
		w.mustSee(s, "", "one", "two", "three")
		cancel(cause)
		<-done
		w.mustFail(s.err, interlock.Definite, cause)
	})
}

// TestWatchIsOpenedAgain after each interruption, however many there are and
// however long they last. What was seen before is not reported again.
func TestWatchIsOpenedAgain(t *testing.T) {
	run(t, func(w *world) {
		w.flaky.breaks = make(chan error)
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		s, done := w.watch(ctx, 0)
		w.mustSee(s, "")
		c := w.hold()
		w.mustPut(c, "one")
		w.mustSee(s, "", "one")
		for i := range 20 {
			w.flaky.before = []error{errLost, errBusy, errBusy}
			w.interrupt(errBusy)
			time.Sleep(time.Minute)
			synctest.Wait()
			if i == 10 {
				w.mustPut(c, "two")
			}
		}
		w.mustSee(s, "", "one", "two")
		if len(w.told) != 80 || w.told[0] != name {
			w.Fatalf("received %d interruptions: %q, want 80", len(w.told), w.told)
		}
		w.interrupt(&interlock.Error{Op: "watch value", Kind: interlock.Definite, Err: errors.New("no such user")})
		<-done
		w.mustFail(s.err, interlock.Definite, nil)
		if len(w.told) != 80 {
			w.Fatal("the end was reported as an interruption")
		}
	})
}

// TestWatchDoesNotHurry: requests to a store that refuses at once have growing pauses.
func TestWatchDoesNotHurry(t *testing.T) {
	run(t, func(w *world) {
		for range 1000 {
			w.flaky.before = append(w.flaky.before, errBusy)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		s, done := w.watch(ctx, 0)
		<-done
		if n := len(w.flaky.calls); n < 30 || n > 250 {
			w.Fatalf("%d calls in a minute", n)
		}
		if !errors.Is(s.err, errBusy) && !errors.Is(s.err, context.DeadlineExceeded) {
			w.Fatalf("the end: %v", s.err)
		}
	})
}

// TestSlowReaderSeesTheLast value, and the loop's body blocks no writer.
func TestSlowReaderSeesTheLast(t *testing.T) {
	run(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		s, done := w.watch(ctx, time.Second)
		c := w.hold()
		for i := range 100 {
			w.mustPut(c, fmt.Sprint(i))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		cancel()
		<-done
		if last := s.data[len(s.data)-1]; last != "99" || len(s.data) > 10 {
			w.Fatalf("seen are %q", s.data)
		}
	})
}

// TestLeavingTheLoopEndsItsGoroutine: synctest would not end otherwise.
func TestLeavingTheLoopEndsItsGoroutine(t *testing.T) {
	run(t, func(w *world) {
		turns := 0
		for range w.values.Watch(w.Context(), name) {
			turns++
			break
		}
		if turns != 1 {
			w.Fatalf("%d turns", turns)
		}
	})
}

// TestRestoredStoreIsNotSeenGoingBack.
func TestRestoredStoreIsNotSeenGoingBack(t *testing.T) {
	run(t, func(w *world) {
		w.flaky.breaks = make(chan error)
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		older := w.hold()
		w.space.Revoke(name)
		newer := w.hold()
		w.mustPut(newer, "newer")
		s, _ := w.watch(ctx, 0)
		w.mustSee(s, "newer")
		restored := w.flaky.Values.Put(w.Context(), name, driver.Value{Token: newer.Token(), Data: []byte("newer")})
		if restored != nil {
			w.Fatal(restored)
		}
		w.mustSee(s, "newer", "newer") // written again: it has its own time
		w.flaky.Values = backup{driver.Value{Token: older.Token(), Data: []byte("older")}}
		w.interrupt(errBusy)
		time.Sleep(time.Minute)
		w.mustSee(s, "newer", "newer")
		w.flaky.Values = backup{driver.Value{Token: newer.Token() + 1, Data: []byte("newest")}}
		w.interrupt(errBusy)
		time.Sleep(time.Minute)
		w.mustSee(s, "newer", "newer", "newest")
	})
}

// backup is a store in which nothing changes.
type backup struct{ v driver.Value }

func (b backup) Put(context.Context, string, driver.Value) error { return errBusy }

func (b backup) Get(context.Context, string) (driver.Value, error) { return b.v, nil }

func (b backup) Watch(ctx context.Context, _ string, each func(driver.Value)) error {
	each(b.v)
	<-ctx.Done()
	return context.Cause(ctx)
}

type limits struct{ PerSecond int }

func TestJSON(t *testing.T) {
	run(t, func(w *world) {
		view := value.JSON[limits]{Store: w.values}
		if of, err := view.Get(w.Context(), name); err != nil || of != (value.Of[limits]{}) {
			w.Fatalf("before anything was written: %+v, %v", of, err)
		}
		c := w.hold()
		testbed.OK(w, view.Put(w.Context(), c, limits{100}))
		of, err := view.Get(w.Context(), name)
		if err != nil || of.Data != (limits{100}) || of.Token != c.Token() || of.Source != c.Owner() || !of.Written.Equal(time.Now()) {
			w.Fatalf("%+v, %v", of, err)
		}
		w.mustPut(c, `{"PerSecond": 7, "PerSecond": "many"}`)
		of, err = view.Get(w.Context(), name)
		w.mustFail(err, interlock.Definite, nil)
		if of.Data != (limits{}) || of.Token != c.Token() {
			w.Fatalf("of what is no limits: %+v", of)
		}
		turns := 0
		for of, err := range view.Watch(w.Context(), name) {
			turns++
			if turns == 1 {
				w.mustFail(err, interlock.Definite, nil)
				testbed.OK(w, view.Put(w.Context(), c, limits{8}))
				continue
			}
			if err != nil || of.Data != (limits{8}) {
				w.Fatalf("%+v, %v", of, err)
			}
			break
		}
		w.mustFail(value.JSON[func()]{Store: w.values}.Put(w.Context(), c, func() {}), interlock.Bug, nil)
	})
}
