package value_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/value"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	name = "limits"
	ttl  = 6 * time.Second
)

// world is a space in virtual time, with a store of values that fails on demand.
type world struct {
	*testing.T
	space  *memory.Space
	flaky  *flaky
	values *value.Store
	told   []string // what Interrupted received
}

func run(t *testing.T, test func(*world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		w := &world{T: t, space: memory.NewSpace()}
		w.flaky = &flaky{Values: w.space.Values()}
		var err error
		w.values, err = value.New(w.flaky, &value.Options{
			Interrupted: func(name string, _ error) { w.told = append(w.told, name) },
		})
		testbed.OK(t, err)
		test(w)
	})
}

// hold acquires the lock like another process, until the test ends.
func (w *world) hold() *lock.Claim {
	w.Helper()
	d := w.space.Open(&memory.Options{TTL: ttl})
	locks, err := lock.NewFenced(d, nil)
	testbed.OK(w, err)
	c, err := locks.Acquire(w.Context(), name)
	testbed.OK(w, err)
	w.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(c.Release(ctx), locks.Close(ctx), d.Close(ctx)); err != nil {
			w.Error(err)
		}
	})
	return c
}

func (w *world) mustPut(c interlock.Claim, data string) {
	w.Helper()
	if err := w.values.Put(w.Context(), c, []byte(data)); err != nil {
		w.Fatalf("put %q: %v", data, err)
	}
}

func (w *world) mustHave(c interlock.Claim, data string) {
	w.Helper()
	v, err := w.values.Get(w.Context(), name)
	if err != nil || string(v.Data) != data || v.Token != c.Token() || v.Source != c.Owner() {
		w.Fatalf("the value is %q with %d of %q, %v; want %q with %d of %q", v.Data, v.Token, v.Source, err, data, c.Token(), c.Owner())
	}
}

func (w *world) mustFail(err error, kind interlock.ErrorKind, target error) {
	w.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		w.Fatalf("got %v (%v), want an error of kind %v (%v)", err, interlock.Kind(err), kind, target)
	}
}

// flaky fails as configured. Tests configure it while no call is running.
type flaky struct {
	driver.Values
	mu     sync.Mutex
	calls  []time.Time
	before []error // of the next calls, which then do nothing
	after  []error // of the next calls, which are then done without an answer
	breaks chan error
}

var errLost = &interlock.Error{Op: "put value", Driver: "flaky", Kind: interlock.Uncertain, Err: errors.New("the reply was lost")}

var errBusy = &interlock.Error{Op: "put value", Driver: "flaky", Kind: interlock.Retryable, Err: errors.New("busy")}

func (f *flaky) fail() (before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, time.Now())
	if len(f.before) > 0 {
		before, f.before = f.before[0], f.before[1:]
		return before, nil
	}
	if len(f.after) > 0 {
		after, f.after = f.after[0], f.after[1:]
	}
	return nil, after
}

func (f *flaky) Put(ctx context.Context, name string, v driver.Value) error {
	before, after := f.fail()
	if before != nil {
		return before
	}
	return errors.Join(after, f.Values.Put(ctx, name, v))
}

func (f *flaky) Get(ctx context.Context, name string) (driver.Value, error) {
	before, after := f.fail()
	if before != nil || after != nil {
		return driver.Value{}, errors.Join(before, after)
	}
	return f.Values.Get(ctx, name)
}

// Watch can be broken from outside.
func (f *flaky) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	if before, _ := f.fail(); before != nil {
		return before
	}
	if f.breaks == nil {
		return f.Values.Watch(ctx, name, each)
	}
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- f.Values.Watch(wctx, name, each) }()
	select {
	case err := <-f.breaks:
		cancel(err)
		<-done
		return err
	case err := <-done:
		return err
	}
}
