// Package deadlock finds deadlocks between tasks of several processes, over claims on several
// systems. It ends one wait of each deadlock:
//
//	detector := deadlock.New(nil)
//	defer detector.Close(ctx)
//
//	ctx = detector.Task(ctx, "transfer 7", 0)
//	acquireRedis := deadlock.Wrap(deadlock.Resource{Board: redisKeys}, redisLocks.Acquire)
//	acquireEtcd := deadlock.Wrap(deadlock.Resource{Board: etcdKeys}, etcdLocks.Acquire)
//
//	from, err := acquireRedis(ctx, "account/1")
//	…
//	to, err := acquireEtcd(ctx, "account/2")
//	var cycle *deadlock.Error
//	if errors.As(err, &cycle) { … } // release all claims of the task, and start again
//
// If a task holds a resource and waits longer than Options.Delay for another one, it publishes
// that wait on a board. The board is a key-value store on the system of the awaited resource.
// So a process needs no connection to systems that it does not use. Nothing is published or
// read for other tasks.
//
// # Algorithm
//
// A wait is for units of a resource. For a lock, all holders must release it; for a semaphore
// (Resource.Permits), enough holders of permits. Each task publishes what it holds and awaits,
// together with what the tasks waiting for it have published. So a task in a deadlock
// eventually knows all of the deadlock. It finds the deadlock by reduction of the graph (R. C.
// Holt, "Some Deadlock Properties of Computer Systems", ACM Computing Surveys 4(3), 1972).
// Holders outside the graph count as running.
//
// Information moves along the waits as in the algorithms of K. M. Chandy, J. Misra and L. M.
// Haas ("Distributed Deadlock Detection", ACM TOCS 1(2), 1983). It goes around the deadlock
// twice. In the second round each task confirms that it still holds and awaits the same
// resources. So all waits of the deadlock existed at the same time, when the second round
// began. No wait is ended for a false deadlock. The wait of the task with the lowest rank ends:
// the lowest priority, and of several such tasks the youngest.
//
// # Prevention
//
// The modes [WoundWait] and [WaitDie] end waits before a deadlock can occur.
//
// # Not found
//
// These deadlocks are not found, so keep a timeout on every wait:
//
//   - those with a wait that no process reports
//   - those with a wait on a board that is unreachable
//   - those that exist only because of the order of waits for several permits of one semaphore
//   - those with more than 64 tasks, or with a task that is more than 32 waits from another
//
// The expiry of a claim also ends a deadlock.
package deadlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// A Board is where waits are published: any key-value store on the system of the resource. Keys
// with the prefix "deadlock/" are reserved for this package.
type Board = driver.KeyValues

// A Resource is what tasks hold and wait for. All processes must use the same name and board
// for it.
type Resource struct {
	Board Board
	Name  string // 1 to driver.MaxName bytes
	// Permits is the number of permits of a semaphore. It must not increase while a task waits.
	// 0 means a lock or a read-write lock. A wait ends only after all holders have released it.
	Permits int
	// Wanted is how many permits to acquire, 1 to Permits; 0 means 1.
	Wanted int
}

func (r Resource) validate() error {
	if r.Board == nil {
		return failure.Bug("await", r.Name, "the resource has no board")
	}
	if r.Permits < 0 || r.Wanted < 0 || r.Wanted > max(r.Permits, 1) {
		return failure.Bug("await", r.Name, "Wanted is %d of %d permits", r.Wanted, r.Permits)
	}
	return driver.CheckName("await", "a resource", r.Name, driver.MaxName)
}

// A Mode is how a detector handles deadlocks. All processes that share boards must use the same
// mode.
type Mode int

const (
	// Detect ends one wait of each existing deadlock.
	Detect Mode = iota
	// WoundWait prevents deadlocks: if a task of higher rank waits for what this task holds,
	// the wait of this task ends. Like the wound-wait of Linux' ww_mutex, it ends only waits.
	// It takes no claim away, and a holder that does not wait continues until it waits.
	WoundWait
	// WaitDie prevents deadlocks: if a task of higher rank holds the awaited resource and is
	// itself waiting, the wait of this task ends.
	WaitDie
)

// String returns the name of the mode.
func (m Mode) String() string {
	switch m {
	case WoundWait:
		return "wound-wait"
	case WaitDie:
		return "wait-die"
	}
	return "deadlock"
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
	// Interval is how often boards are read while a task of this process holds a resource and
	// waits longer than Delay. Each read is one request per board. 0 means [DefaultInterval]. A
	// cycle of n processes is found within about 2·n intervals.
	Interval time.Duration
	// Mode is Detect, or prevents deadlocks as D. J. Rosenkrantz, R. E. Stearns and P. M. Lewis
	// describe ("System Level Concurrency Control for Distributed Database Systems", ACM TODS
	// 3(2), 1978). Prevention takes one to three intervals, whatever the number of tasks, but
	// also ends waits that are in no deadlock.
	Mode Mode
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Deadlock
}

// An Error means that a wait was ended to resolve or prevent a deadlock. It is Retryable after
// the task has released everything that it holds.
type Error struct {
	Mode Mode
	// Cycle has the waits of the deadlock; the first one was ended. In the other modes it has
	// the wait that was ended, and in mode WoundWait also the wait of the task with higher
	// rank.
	Cycle []Edge
}

// An Edge is one wait.
type Edge struct {
	Task   string   // the name of the task
	Awaits string   // the name of the resource
	HeldBy []string // the tasks of the cycle that hold it
}

// String returns the task, the awaited resource, and its holders.
func (e Edge) String() string {
	s := e.Task + " awaits " + e.Awaits
	if len(e.HeldBy) > 0 {
		s += ", held by " + strings.Join(e.HeldBy, " and ")
	}
	return s
}

// Error returns a message with the waits.
func (e *Error) Error() string {
	var waits []string
	for _, w := range e.Cycle {
		waits = append(waits, w.String())
	}
	return e.Mode.String() + ": " + strings.Join(waits, "; ")
}

// ErrorKind returns [interlock.Retryable].
func (e *Error) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A Detector finds deadlocks that involve tasks of this process. It is safe for concurrent use.
type Detector struct {
	options Options
	id      string
	hooks   *observe.Deadlock
	reports report.Queue // of hooks
	running sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
	wake    chan struct{} // capacity 1: a task holds a resource and waits
	sights  sights        // only of the goroutine that looks

	mu      sync.Mutex
	numbers int64                // of tasks, holds and waits
	tasks   map[*member]struct{} // that hold or wait
}

// New returns a detector and starts its goroutine. It performs no I/O before a task waits.
// Close it.
func New(o *Options) *Detector {
	o = cmp.Or(o, &Options{})
	d := &Detector{options: *o, id: rand.Text(), hooks: o.Hooks.WithDefaults(), wake: make(chan struct{}, 1),
		sights: sights{}, tasks: map[*member]struct{}{}}
	d.options.Delay = cmp.Or(max(o.Delay, 0), DefaultDelay)
	d.options.Interval = cmp.Or(max(o.Interval, 0), DefaultInterval)
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.running.Go(d.run)
	return d
}

// Close removes the published waits, within five seconds, and ends the detector. It blocks
// until then and until hooks have returned, or until ctx ends. Waits continue without detection.
func (d *Detector) Close(ctx context.Context) error {
	d.stop()
	if err := join.Wait(ctx, d.running.Wait); err != nil {
		return err
	}
	return d.reports.Wait(ctx)
}
