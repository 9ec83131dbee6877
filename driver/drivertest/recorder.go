package drivertest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// recorder calls a Watch, repeats it as the portable types do, and stores its reports.
type recorder[T any] struct {
	t      *testing.T
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the last call has returned
	news   chan struct{} // capacity 1: there are new reports

	calls int // of report; unguarded, so that the race detector finds overlapping calls

	mu      sync.Mutex
	reports []T
	ended   bool // the current call of Watch has returned
	late    int  // reports after that
	err     error
}

func record[T any](t *testing.T, watch func(ctx context.Context, report func(T)) error) *recorder[T] {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	r := &recorder[T]{t: t, cancel: cancel, done: make(chan struct{}), news: make(chan struct{}, 1)}
	go func() {
		defer close(r.done)
		for r.once(ctx, watch) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { r.end(nil) })
	return r
}

// once calls Watch and reports whether it may be called again.
func (r *recorder[T]) once(ctx context.Context, watch func(context.Context, func(T)) error) bool {
	r.mu.Lock()
	r.ended = false
	r.mu.Unlock()
	err := watch(ctx, r.report)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.err = true, err
	return interlock.Kind(err) == interlock.Retryable
}

func (r *recorder[T]) report(x T) {
	r.calls++
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.late++
	}
	r.reports = append(r.reports, x)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// all returns the reports so far, and the error of the last call.
func (r *recorder[T]) all() ([]T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reports), r.err
}

// wait waits for new reports. It returns false after timeout, and fails the test if the watch has ended.
func (r *recorder[T]) wait(timeout <-chan time.Time) bool {
	r.t.Helper()
	select {
	case <-r.news:
		return true
	case <-timeout:
	case <-r.done:
		_, err := r.all()
		r.t.Fatalf("the watch is over: %v", err)
	}
	return false
}

// end ends the watch with a cause, waits until it has ended and returns Watch's error.
func (r *recorder[T]) end(cause error) error {
	r.t.Helper()
	r.cancel(cause)
	testbed.Receive(r.t, r.done, "the end of a watch after its context")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.late > 0 {
		r.t.Fatalf("%d reports came after Watch had returned", r.late)
	}
	return r.err
}
