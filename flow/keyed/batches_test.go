package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// TestBatches: tasks queued during a batch form the next one, in order, within the size, of one key.
func TestBatches(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		begun, next := make(chan string), make(chan struct{})
		b, err := keyed.NewBatches(3, func(_ context.Context, key string, batch []int) error {
			begun <- fmt.Sprint(key, batch)
			<-next
			return nil
		}, &keyed.Options{Concurrency: 1})
		ok(t, err)
		given, cancel := context.WithCancel(t.Context())
		for i, key := range []string{"a", "a", "b", "a", "a", "b", "a", "a"} {
			ctx := t.Context()
			if i == 3 {
				ctx = given
			}
			ok(t, b.Go(ctx, key, i, func(err error) {
				if (err != nil) != (i == 3) {
					t.Error(i, err)
				}
			}))
			synctest.Wait()
		}
		cancel()
		// Task 3 was cancelled, and is not in its batch.
		for _, want := range []string{"a[0]", "b[2 5]", "a[1 4]", "a[6 7]"} {
			if got := <-begun; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			next <- struct{}{}
		}
		closed(t, b)
	})
}

// TestErrorsOfABatch: one error for all tasks, or one for each; with a wrong number of errors all fail.
func TestErrorsOfABatch(t *testing.T) {
	odd := errors.New("odd")
	for name, c := range map[string]struct {
		run  func([]int) error
		want string
	}{
		"all":   {func([]int) error { return odd }, "[odd odd odd]"},
		"panic": {func([]int) error { panic("x") }, `[task of "k" panicked: x task of "k" panicked: x task of "k" panicked: x]`},
		"each": {func(batch []int) error {
			each := make(keyed.BatchError, len(batch))
			for i, n := range batch {
				if n%2 == 1 {
					each[i] = odd
				}
			}
			return each
		}, "[<nil> odd <nil>]"},
		"each, and more": {func(batch []int) error { return errors.Join(make(keyed.BatchError, len(batch)), odd) },
			"[batch: <nil>\nodd batch: <nil>\nodd batch: <nil>\nodd]"},
		"too few": {func([]int) error { return keyed.BatchError{nil} },
			`[run batch "k": 1 errors for 3 tasks: batch: <nil> run batch "k": 1 errors for 3 tasks: batch: <nil> run batch "k": 1 errors for 3 tasks: batch: <nil>]`},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var all sync.WaitGroup
				all.Add(4)
				hold := make(chan struct{})
				b, err := keyed.NewBatches(3, func(_ context.Context, _ string, batch []int) error {
					if len(batch) == 1 {
						<-hold
						return nil
					}
					return c.run(batch)
				}, nil)
				ok(t, err)
				ok(t, b.Go(t.Context(), "k", -1, func(error) { all.Done() }))
				synctest.Wait() // it runs
				var got [3]error
				for i := range got {
					ok(t, b.Go(t.Context(), "k", i, func(err error) { got[i] = err; all.Done() }))
				}
				close(hold)
				all.Wait()
				if fmt.Sprint(got) != c.want {
					t.Errorf("%v, want %s", got, c.want)
				}
				closed(t, b)
			})
		})
	}
	if err := (keyed.BatchError{nil, odd}); !errors.Is(err, odd) || interlock.Kind(err) != interlock.Uncertain {
		t.Error(err)
	}
}

// TestErrorsOfATask reach the submitter unchanged, even a BatchError.
func TestErrorsOfATask(t *testing.T) {
	x := executor(t, nil)
	for _, want := range []error{keyed.BatchError{nil}, keyed.BatchError{nil, nil}, fmt.Errorf("a batch below: %w", keyed.BatchError{nil})} {
		if err := x.Do(t.Context(), "k", func(context.Context) error { return want }); fmt.Sprint(err) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}
