// Package deadlock finds deadlocks between tasks of several processes, over claims that are on
// several systems, and ends one wait of each:
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
//	if errors.As(err, &cycle) { … } // release what is held, and begin again
//
// A task that holds something and waits longer than Options.Delay for something else publishes
// that wait on the board of what it waits for, which is a key-value store on the same system.
// So a process needs no connection to systems that it does not use. Nothing is published or
// read for other tasks.
//
// # Algorithm
//
// A wait is for units of a resource: all holders of a lock have to release it, and enough of
// those that hold permits of a semaphore (Resource.Permits). Each task publishes what it holds
// and awaits, together with what those have published that wait for it. So a task that is in a
// deadlock comes to know all of it, and finds it by reduction of the graph, as R. C. Holt
// describes ("Some Deadlock Properties of Computer Systems", ACM Computing Surveys 4(3), 1972).
// Holders that are not in the graph count as running.
//
// As in the algorithms of K. M. Chandy, J. Misra and L. M. Haas ("Distributed Deadlock
// Detection", ACM TOCS 1(2), 1983), information goes round along the waits. It goes round twice:
// in the second round each task confirms that it still holds and awaits the same. So when the
// second round began all waits of the deadlock existed at the same time: nothing is ended for a
// deadlock that never was. The task of lowest rank gives up: the one of lowest priority, of
// several the youngest.
//
// # Prevention
//
// The modes [WoundWait] and [WaitDie] end waits before a deadlock can arise.
//
// # Not found
//
// Not found are waits that no process reports; those on a board that cannot be reached; those
// behind another one for several permits of the same semaphore, because of their order alone;
// deadlocks of more than 64 tasks, or in which a task is more than 32 waits from another. So
// keep the timeout of every wait. Expiry of a claim ends a deadlock too.
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
	"github.com/interlock-dev/interlock/observe"
)

// A Board is where waits are published: any key-value store on the system that a resource is
// on. Its keys with the prefix "deadlock/" belong to this package.
type Board = driver.KeyValues

// A Resource is what tasks hold and wait for. All that use it name it alike, on the same board.
type Resource struct {
	Board Board
	Name  string // 1 to driver.MaxName bytes
	// Permits is the number of permits of a semaphore. It must not rise while a task waits. 0
	// means a lock, also of readers: a wait needs all holders to release it.
	Permits int
	// Wanted is how many permits are acquired, 1 to Permits; 0 means 1.
	Wanted int
}

func (r Resource) validate() error {
	if r.Board == nil {
		return failure.Bug("await", r.Name, "the resource has no board")
	}
	if r.Permits < 0 || r.Wanted < 0 || r.Wanted > max(r.Permits, 1) {
		return failure.Bug("await", r.Name, "%d of %d permits are wanted", r.Wanted, r.Permits)
	}
	return driver.CheckName("await", "a resource", r.Name, driver.MaxName)
}

// A Mode is what a detector does about deadlocks. All that share boards use the same one.
type Mode int

const (
	// Detect ends a wait of each deadlock that there is.
	Detect Mode = iota
	// WoundWait prevents deadlocks: the wait of a task ends if a task of higher rank waits for
	// what it holds. Like the wound-wait of Linux' ww_mutex it only ends waits: it takes no claim
	// away, and a holder that does not wait goes on until it does.
	WoundWait
	// WaitDie prevents deadlocks: the wait of a task ends if what it awaits is held by a task of
	// higher rank that waits itself.
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
	// Interval is how often boards are read while a task of this process holds something and
	// waits longer than Delay: one request for each board. 0 means [DefaultInterval]. A cycle of
	// n processes is found within about 2·n intervals.
	Interval time.Duration
	// Mode is Detect, or prevents deadlocks as D. J. Rosenkrantz, R. E. Stearns and P. M. Lewis
	// describe ("System Level Concurrency Control for Distributed Database Systems", ACM TODS
	// 3(2), 1978). Prevention takes one to three intervals, whatever the number of tasks, but
	// also ends waits that are in no deadlock.
	Mode Mode
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Deadlock
}

// An Error says that a wait was ended because of a deadlock, or to prevent one. It is Retryable,
// after the task has released what it holds.
type Error struct {
	Mode Mode
	// Cycle is the waits of the deadlock. In the other modes it is the wait that was ended, and
	// in mode WoundWait also the wait of higher rank. The first one was ended.
	Cycle []Edge
}

// An Edge is one wait.
type Edge struct {
	Task   string   // its name
	Awaits string   // the name of the resource
	HeldBy []string // the tasks of the cycle that hold it
}

// String returns the task, what it awaits, and who holds it.
func (e Edge) String() string {
	s := e.Task + " awaits " + e.Awaits
	if len(e.HeldBy) > 0 {
		s += ", held by " + strings.Join(e.HeldBy, " and ")
	}
	return s
}

// Error returns the waits.
func (e *Error) Error() string {
	var waits []string
	for _, w := range e.Cycle {
		waits = append(waits, w.String())
	}
	return e.Mode.String() + ": " + strings.Join(waits, "; ")
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
