package deadlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
)

// member is a task of this process. The mutex of its detector guards its fields, except last,
// which only the detector's goroutine uses.
type member struct {
	d        *Detector
	last     link // last published
	id, name string
	rank     rank
	holds    map[int64]Resource         // by number
	waits    map[int64]Resource         // by number
	begun    map[int64]boottime.Instant // waits
	cancel   map[int64]context.CancelCauseFunc
}

type taskKey struct{}

// Task returns a context for the work of one task. Everything acquired with this context, or
// with one that descends from it, belongs to the task. The name is for people. If tasks of a
// deadlock differ in priority, the wait of one with the lowest priority ends. If the task
// starts again after a deadlock, it should keep its context and thus its age. Then it
// eventually is the oldest.
func (d *Detector) Task(ctx context.Context, name string, priority int) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbers++
	m := &member{d: d, id: fmt.Sprintf("%s/%d", d.id, d.numbers), name: name, rank: rank{Priority: priority, Began: time.Now().UnixMicro()},
		holds: map[int64]Resource{}, waits: map[int64]Resource{}, begun: map[int64]boottime.Instant{}, cancel: map[int64]context.CancelCauseFunc{}}
	return context.WithValue(ctx, taskKey{}, m)
}

// Claim is what [Wrap] can acquire: claims of locks, read claims, write claims and permits.
type Claim interface {
	// Context returns a context that ends when the claim does.
	Context() context.Context
	// Release releases the claim.
	Release(ctx context.Context) error
}

// Wrap returns a function that calls acquire and reports the wait to the detector of the task
// in its context. For example, acquire is the method of a lock. The name of the resource is
// r.Name followed by the name that is acquired, so r.Name separates the users of a board.
//
// The task holds the claim until the claim's context ends. If the wait must end because of a
// deadlock, the context of acquire ends, and the error wraps an [*Error]. A context without a
// task is a Bug.
func Wrap[C Claim](r Resource, acquire func(ctx context.Context, name string) (C, error)) func(ctx context.Context, name string) (C, error) {
	return func(ctx context.Context, name string) (C, error) {
		r := r
		r.Name += name
		return acquireClaim(ctx, r, func(ctx context.Context) (C, error) { return acquire(ctx, name) })
	}
}

func acquireClaim[C Claim](ctx context.Context, r Resource, acquire func(ctx context.Context) (C, error)) (C, error) {
	var none, claim C
	acquired := false
	drop, err := Wait(ctx, r, func(ctx context.Context) (err error) {
		claim, err = acquire(ctx)
		acquired = err == nil
		return err
	})
	switch {
	case err == nil:
		context.AfterFunc(claim.Context(), drop)
		return claim, nil
	case acquired: // a verdict ended the context at the same moment
		err = errors.Join(err, claim.Release(ctx))
	}
	return none, err
}

// Wait calls wait, which waits for r. It is [Wrap] for resources that are not one claim, such
// as the rows of a transaction or several permits. The task holds r until drop is called, which
// may be repeated. The context of wait lasts until drop. After an error the task does not hold
// r, and drop is nil.
func Wait(ctx context.Context, r Resource, wait func(ctx context.Context) error) (drop func(), err error) {
	m, _ := ctx.Value(taskKey{}).(*member)
	if m == nil {
		return nil, failure.Bug("await", r.Name, "the context has no task; see Detector.Task")
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	number := m.wait(r, cancel)
	end := func() { m.end(number); cancel(nil) }
	got := false
	defer func() {
		if !got { // wait failed or panicked
			end()
		}
	}()
	err = wait(ctx)
	if got = err == nil && m.hold(number); got {
		return end, nil
	}
	cause := context.Cause(ctx)
	if found := (*Error)(nil); errors.As(cause, &found) {
		if !errors.As(err, new(*Error)) {
			err = errors.Join(found, err)
		}
		err = &interlock.Error{Op: "await", Name: r.Name, Kind: interlock.Retryable, Err: err}
	}
	return nil, cmp.Or(err, cause) // a verdict ends a wait also after its context has ended
}

// wait records a wait and returns its number. If the wait is granted, the hold has the same
// number.
func (m *member) wait(r Resource, cancel context.CancelCauseFunc) int64 {
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbers++
	m.waits[d.numbers], m.begun[d.numbers], m.cancel[d.numbers] = r, boottime.Now(), cancel
	d.tasks[m] = struct{}{}
	if len(m.holds) > 0 {
		hints.Signal(d.wake)
	}
	return d.numbers
}

// hold turns a wait into a hold, unless the wait was ended.
func (m *member) hold(number int64) bool {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	r, ok := m.waits[number]
	if !ok {
		return false
	}
	m.forget(number)
	m.holds[number] = r
	if len(m.waits) > 0 {
		hints.Signal(m.d.wake)
	}
	return true
}

// abort ends a wait because of a deadlock, if the wait still lasts.
func (m *member) abort(v *verdict) bool {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	cancel, ok := m.cancel[v.wait]
	if ok {
		m.forget(v.wait)
		cancel(v.err())
	}
	return ok
}

// end ends a wait or a hold.
func (m *member) end(number int64) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	delete(m.holds, number)
	m.forget(number)
	if len(m.holds)+len(m.waits) == 0 {
		delete(m.d.tasks, m)
	}
}

func (m *member) forget(wait int64) {
	delete(m.waits, wait)
	delete(m.begun, wait)
	delete(m.cancel, wait)
}

// A Waiter is a task that holds a resource and waits for another one, as published by its
// process.
type Waiter struct {
	Task   string // the name of the task
	Awaits string // the name of the resource
	Holds  []string
	Since  time.Time // when the task began, by the clock of its process
}

// Waiters reads the long waits from a board. They need not be part of a deadlock, and notes of
// crashed processes last up to half a minute. It returns the valid notes, and an error if
// others are invalid.
func Waiters(ctx context.Context, board Board) (all []Waiter, err error) {
	s := &sight{}
	if err := s.read(ctx, board); err != nil {
		return nil, err
	}
	for _, kv := range s.notes {
		n, wrong := parse(kv.Value)
		if wrong != nil {
			err = wrong
			continue
		}
		if n.Awaits != "" {
			all = append(all, Waiter{n.Task, n.Awaits, n.Holds, time.UnixMicro(n.Links[0].Rank.Began)})
		}
	}
	return all, err
}
