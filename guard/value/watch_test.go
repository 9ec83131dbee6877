package value_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/value"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
