// Package deadlock finds deadlocks between tasks of several processes, over claims that are on
// several systems, and ends one wait of each:
//
//	detector := deadlock.New(nil)
//	defer detector.Close(ctx)
//
//	ctx = detector.Task(ctx, "transfer 7", 0)
//	from, err := deadlock.Acquire(ctx, deadlock.Resource{Board: redisKeys, Name: "account/1"},
//		func(ctx context.Context) (*lock.Claim, error) { return redisLocks.Acquire(ctx, "account/1") })
//	…
//	to, err := deadlock.Acquire(ctx, deadlock.Resource{Board: etcdKeys, Name: "account/2"},
//		func(ctx context.Context) (*lock.Claim, error) { return etcdLocks.Acquire(ctx, "account/2") })
//	var cycle *deadlock.Error
//	if errors.As(err, &cycle) { … } // release what is held, and begin again
//
// A task that holds something and waits longer than Options.Delay for something else publishes
// that wait on the board of what it waits for, which is a key-value store on the same system.
// So a process needs no connection to systems that it does not use. Nothing is published or
// read for other tasks.
//
// The algorithm is that of K. M. Chandy, J. Misra and L. M. Haas for the AND model ("Distributed
// Deadlock Detection", ACM TOCS 1(2), 1983): a probe follows the waits, and a task whose own
// probe comes back is in a cycle. Here a probe lists its path, is passed on only by tasks that
// rank above its initiator, and goes round twice. In the second round each task confirms that
// it still holds and awaits the same. So when the second round began all waits of the cycle
// existed at the same time: nothing is ended for a cycle that never was. The task of lowest
// rank gives up: the one of lowest priority, of several the youngest.
//
// What is not found: waits of one permit of many, which need all holders to be blocked; waits
// that a process does not report; those on a board that cannot be reached; cycles of more than
// 32 tasks. So keep the timeout of every wait. Expiry of a claim ends a deadlock too.
package deadlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
)

// A Board is where waits are published: any key-value store on the system that a resource is
// on. Its keys with the prefix "deadlock/" belong to this package.
type Board = driver.KeyValues

// A Resource is what tasks hold and wait for. All that use it name it alike, on the same board.
type Resource struct {
	Board Board
	Name  string // 1 to driver.MaxName bytes
}

// Defaults of [Options].
const (
	DefaultDelay    = 100 * time.Millisecond
	DefaultInterval = 50 * time.Millisecond
)

// Options configure a detector; nil and the zero value are valid.
type Options struct {
	// Delay is how long a task waits before the wait is published; 0 means [DefaultDelay].
	Delay time.Duration
	// Interval is how often boards are read while a task of this process holds something and
	// waits longer than Delay: one request for each board. 0 means [DefaultInterval]. A cycle of
	// n processes is found within about 2·n intervals.
	Interval time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Deadlock
}

// An Error says that a wait was ended because of a deadlock. It is Retryable, after the task
// has released what it holds.
type Error struct {
	Cycle []Edge // the first one was ended; the last one waits for what its task holds
}

// An Edge is one wait of a cycle.
type Edge struct {
	Task   string // its name
	Awaits string // the name of the resource
}

// Error returns the tasks of the cycle, and what each awaits.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("deadlock: ")
	for _, w := range e.Cycle {
		fmt.Fprintf(&b, "%s awaits %s, held by ", w.Task, w.Awaits)
	}
	return b.String() + e.Cycle[0].Task
}

// ErrorKind returns [interlock.Retryable].
func (e *Error) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A Detector finds the deadlocks in which tasks of this process take part. It is safe for
// concurrent use.
type Detector struct {
	options Options
	id      string
	hooks   *observe.Deadlock
	running sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
	wake    chan struct{} // capacity 1: a task holds something and waits
	sights  sights        // only of the goroutine that looks

	mu      sync.Mutex
	numbers int64                // of tasks, holds and waits
	tasks   map[*member]struct{} // that hold or wait
}

// New starts a detector. It does no I/O before a task waits.
func New(o *Options) *Detector {
	if o == nil {
		o = &Options{}
	}
	d := &Detector{options: *o, id: rand.Text(), hooks: o.Hooks.WithDefaults(), wake: make(chan struct{}, 1),
		sights: sights{}, tasks: map[*member]struct{}{}}
	d.options.Delay = cmp.Or(max(o.Delay, 0), DefaultDelay)
	d.options.Interval = cmp.Or(max(o.Interval, 0), DefaultInterval)
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.running.Go(d.run)
	return d
}

// Close removes what was published, within five seconds, and ends the detector. Waits go on
// without it.
func (d *Detector) Close(ctx context.Context) error {
	d.stop()
	return join.Wait(ctx, d.running.Wait)
}

// member is a task of this process. Its fields are under the mutex of its detector.
type member struct {
	task
	d      *Detector
	begun  map[int64]time.Time // waits, by number
	cancel map[int64]context.CancelCauseFunc
}

type taskKey struct{}

// Task returns a context for the work of one task: what is acquired with it, and with those
// that descend from it, belongs to the task. The name is for people. If tasks of a cycle differ
// in priority, one of the lowest gives up. A task that begins again after a deadlock keeps its
// context, and so its age: in the end it is the oldest.
func (d *Detector) Task(ctx context.Context, name string, priority int) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbers++
	m := &member{d: d, begun: map[int64]time.Time{}, cancel: map[int64]context.CancelCauseFunc{},
		task: task{id: fmt.Sprintf("%s/%d", d.id, d.numbers), name: name, rank: rank{Priority: priority, Began: time.Now().UnixMicro()},
			holds: map[int64]Resource{}, waits: map[int64]Resource{}}}
	return context.WithValue(ctx, taskKey{}, m)
}

// Claim is what [Acquire] can acquire: the claims of locks, and of readers and writers.
type Claim interface {
	// Context ends when the claim does.
	Context() context.Context
	// Release gives the claim up.
	Release(ctx context.Context) error
}

// Acquire calls acquire, which waits for r, and returns its claim, which the task of ctx holds
// until the claim's context ends. If the wait is part of a deadlock that this task has to end,
// the context of acquire ends, and the error has an [*Error] in its chain. A ctx without a task
// is a Bug.
func Acquire[C Claim](ctx context.Context, r Resource, acquire func(ctx context.Context) (C, error)) (C, error) {
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
	case acquired: // in the moment of the verdict, which has ended its context
		err = errors.Join(err, claim.Release(ctx))
	}
	return none, err
}

// Wait calls wait, which waits for r, as [Acquire] does, for what is not a claim: rows of a
// transaction, for example. The task holds r until drop is called, which may be repeated. After
// an error it holds nothing, and drop is nil. The context of wait lasts until drop.
func Wait(ctx context.Context, r Resource, wait func(ctx context.Context) error) (drop func(), err error) {
	m, _ := ctx.Value(taskKey{}).(*member)
	if m == nil {
		return nil, failure.Bug("await", r.Name, "the context has no task; see Detector.Task")
	}
	if r.Board == nil {
		return nil, failure.Bug("await", r.Name, "the resource has no board")
	}
	if err := driver.CheckName("await", "a resource", r.Name, driver.MaxName); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	number := m.wait(r, cancel)
	end := func() { m.end(number); cancel(nil) }
	got := false
	defer func() {
		if !got { // it has failed, or panicked
			end()
		}
	}()
	err = wait(ctx)
	if got = err == nil && m.hold(number); got {
		return end, nil
	}
	if found := (*Error)(nil); errors.As(context.Cause(ctx), &found) {
		if !errors.As(err, new(*Error)) {
			err = errors.Join(found, err)
		}
		err = &interlock.Error{Op: "await", Name: r.Name, Kind: interlock.Retryable, Err: err}
	}
	return nil, err
}

// wait notes a wait, and returns its number, which is also that of the hold that follows.
func (m *member) wait(r Resource, cancel context.CancelCauseFunc) int64 {
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbers++
	m.waits[d.numbers], m.begun[d.numbers], m.cancel[d.numbers] = r, time.Now(), cancel
	d.tasks[m] = struct{}{}
	if len(m.holds) > 0 {
		hints.Signal(d.wake)
	}
	return d.numbers
}

// hold makes a wait a hold, unless it was ended.
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

// abort ends a wait because of a deadlock, if it still lasts.
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
