package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A Task is one call of a participant.
type Task struct {
	Target  string        // what is busy or broken together; empty has places of its own too
	Timeout time.Duration // of the call, from when it is made, or from its last [Beat]; 0 means 30 seconds
	Call    branch.Call   // its Epoch, Begun unless it is set, and Deadline unless it is earlier are filled in
	// Do makes the call. It returns when ctx ends.
	Do func(ctx context.Context) error
}

// errNotCalled is the outcome of a task that was not called, because nothing may
// be called any more.
var errNotCalled = errors.New("it was not called")

// errNoReturn is the outcome of a task that ended its goroutine.
var errNoReturn = errors.New("it ended its goroutine, as runtime.Goexit and a test's FailNow do")

// Round makes calls at once, each in a goroutine and a place of its target, outside of
// the slot, and returns the outcome of each. A panic is a [branch.Unknown] error, and
// so is the end of the goroutine. What was not called, since nothing may be any more, is
// a [branch.Retry] error; Holds says why.
func (t *Turn) Round(tasks ...Task) []error {
	t.leave()
	errs := make([]error, len(tasks))
	var work sync.WaitGroup
	for i, task := range tasks {
		errs[i] = branch.Unknown(errNoReturn)
		work.Go(func() { errs[i] = t.call(task) })
	}
	work.Wait()
	t.enter() // if not, serving has ended, which Append survives
	return errs
}

func (t *Turn) call(task Task) error {
	at := t.server.coordinator.use(task.Target)
	defer t.server.coordinator.disuse(at)
	if !at.enter(t) {
		return branch.Retry(errNotCalled)
	}
	defer at.leave()
	if t.Holds() != nil {
		return branch.Retry(errNotCalled)
	}
	if task.Timeout <= 0 {
		task.Timeout = 30 * time.Second
	}
	now, c := t.Now(), task.Call
	if c.Epoch = t.Epoch(); c.Begun.IsZero() {
		c.Begun = t.begun
	}
	if limit := now.Add(task.Timeout); c.Deadline.IsZero() || limit.Before(c.Deadline) {
		c.Deadline = limit
	}
	ctx, end := beating(t.server.ctx, c.Deadline.Sub(now), c.Branch)
	defer end()
	err := Guarded(branch.With(ctx, c), task.Do)
	if class, _ := branch.ClassOf(err); t.server.ctx.Err() == nil {
		at.answered(err == nil || class == branch.ClassFail || class == branch.ClassOngoing)
	}
	return err
}

// Guarded makes a panic the failure of this call, and of no other.
func Guarded(ctx context.Context, do func(context.Context) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = branch.Unknown(fmt.Errorf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	return do(ctx)
}

// heart is the timer of a call.
type heart struct {
	timer *time.Timer
	bound time.Duration
}

type heartKey struct{}

// beating is a context that ends when nothing was heard for a time.
func beating(ctx context.Context, bound time.Duration, name string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &heart{bound: bound}
	h.timer = time.AfterFunc(bound, func() { cancel(fmt.Errorf("the time of %q is up: %w", name, context.DeadlineExceeded)) })
	return context.WithValue(ctx, heartKey{}, h), func() { h.timer.Stop(); cancel(nil) }
}

// Beat says that the call which ctx was made for is still at work: its timeout counts
// from now on. It is false if the call's time is up, or ctx is no call's.
func Beat(ctx context.Context) bool {
	h, ok := ctx.Value(heartKey{}).(*heart)
	return ok && ctx.Err() == nil && h.timer.Reset(h.bound)
}
