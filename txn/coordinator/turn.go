package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Turn is one execution of a transaction by the coordinator that owns its shard. It must be
// used by one goroutine.
type Turn struct {
	server *server
	id     string
	due    bool
	fresh  bool
	inside bool // has a slot
	former bool // an owner before this one may have called something
	stays  bool // it has waited for a target that failed, and is kept in memory for that
	begun  time.Time

	log     *journal.Log
	entries []journal.Entry

	prepared   any         // what who has begun it knows
	conclusion any         // for those that wait for it here
	awaited    atomic.Bool // somebody waits for it elsewhere

	position atomic.Int64  // of the last record that is known here
	outrun   atomic.Bool   // somebody else has appended
	crowded  atomic.Bool   // too many wait for one of its targets
	wake     chan struct{} // holds one
}

// Context ends with that of Serve, and with the claim.
func (t *Turn) Context() context.Context { return t.server.ctx }

// ID is the transaction's.
func (t *Turn) ID() string { return t.id }

// Head is where the transaction stands, as far as is known here.
func (t *Turn) Head() driver.Head { return t.log.Head() }

// Entries are those that were there when the turn began.
func (t *Turn) Entries() []journal.Entry { return t.entries }

// Prepared is what [Coordinator.BeginPrepared] was called with, if the turn is Fresh; else nil.
func (t *Turn) Prepared() any { return t.prepared }

// Conclude leaves how the transaction has ended for those that wait for it in this process:
// see [Waiter.Wait]. Each of them gets the same, so that it does not change.
func (t *Turn) Conclude(conclusion any) { t.conclusion = conclusion }

// Begun is when the transaction began, in whole milliseconds: by the clock of the
// process that began it as long as that drives it, then by the store's.
func (t *Turn) Begun() time.Time { return t.begun }

// Fresh reports whether the transaction was begun in this process a moment ago, and
// nobody has called anything for it.
func (t *Turn) Fresh() bool { return t.fresh }

// Due reports whether the transaction was found by its due time, or by a nudge.
func (t *Turn) Due() bool { return t.due }

// TakenOver reports whether a former owner of the shard may have called something of the
// transaction, and this owner has not appended yet. Take-overs that follow each other
// without an answer are to be counted, because whatever is called may crash its process:
// see [Turn.Exhausted].
func (t *Turn) TakenOver() bool { return t.former }

// Exhausted reports whether so many take-overs in a row, this one included, are enough to
// leave the transaction to a person; see Options.TakeOvers.
func (t *Turn) Exhausted(takeOvers int) bool {
	most := t.server.coordinator.options.TakeOvers
	return most > 0 && takeOvers >= most
}

// Epoch is that of the shard's owner.
func (t *Turn) Epoch() interlock.Token { return t.server.shard.Epoch() }

// Now is the time by the coordinator's clock.
func (t *Turn) Now() time.Time { return t.server.coordinator.options.Now() }

// Random is a number in [0,1), for jitter.
func (t *Turn) Random() float64 { return t.server.coordinator.options.Random() }

// Holds says why nothing may be called any more: the shard is not ours, serving has
// ended, somebody else has appended, a [journal.ErrConflict], or the transaction is left until
// it is due again: because so many wait for one of its targets, see Options.Held, or the
// shard is about to be given to another process, see Options.Yield. It looks at the clock
// of the claim on the spot.
func (t *Turn) Holds() error {
	if err := t.server.holds(); err != nil {
		return err
	}
	if t.outrun.Load() {
		return fmt.Errorf("drive %q: %w", t.id, journal.ErrConflict)
	}
	if t.crowded.Load() {
		return errCrowded
	}
	if t.server.yielding.Load() {
		return errYielding
	}
	return nil
}

// Append makes entries durable, and says when the transaction is to be looked at
// next; the zero time is after Options.Recheck. It outlasts the context of Serve, but
// not the claim. Its errors are those of [journal.Log.Append]; Drive returns them.
func (t *Turn) Append(due time.Time, entries ...journal.Entry) error {
	if due.IsZero() {
		due = t.Now().Add(t.server.coordinator.options.Recheck)
	}
	return t.write(func(ctx context.Context) error { return t.log.Append(ctx, due, entries...) })
}

// End is Append with the last entries of the transaction.
func (t *Turn) End(entries ...journal.Entry) error {
	return t.write(func(ctx context.Context) error { return t.log.End(ctx, entries...) })
}

// Log is the transaction's, for who appends to it in a way of its own, with
// [Turn.Write].
func (t *Turn) Log() *journal.Log { return t.log }

// Write runs an append to Log under the conditions of [Turn.Append].
func (t *Turn) Write(do func(ctx context.Context) error) error { return t.write(do) }

func (t *Turn) write(do func(ctx context.Context) error) error {
	if err := t.server.released(); err != nil {
		return err
	}
	err := do(context.WithoutCancel(t.server.ctx))
	t.position.Store(t.log.Head().Position)
	return err
}

// Pause waits outside of the slot, and no longer when one of the targets, being sick,
// answers again, or somebody else appends. It is false if serving has ended, or
// [Turn.Holds] has something to say.
func (t *Turn) Pause(wait time.Duration, targets ...string) bool {
	t.leave()
	select { // a sign from before has been seen in what was called since
	case <-t.wake:
	default:
	}
	stop := t.server.coordinator.listenTo(t, targets)
	if stop == nil {
		return false
	}
	defer stop()
	t.stays = t.stays || len(targets) > 0
	if t.Holds() != nil {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.wake:
	case <-t.server.ctx.Done():
	}
	return t.server.ctx.Err() == nil && t.enter() && t.Holds() == nil
}

// How a turn runs.

// admit drives a transaction that was reserved, if it was begun here: nobody has
// called anything for it. If it may have been, or somebody has found it meanwhile, it is
// looked for.
func (t *Turn) admit(log *journal.Log, err error, entries []journal.Entry, now time.Time) {
	if log != nil {
		t.fresh, t.begun = true, now.Truncate(time.Millisecond)
		t.take(t.server.shard.Adopt(log), entries)
	} else if interlock.Kind(err) != interlock.Uncertain && t.server.release(t) {
		return
	}
	t.due = log == nil
	if !t.server.launch(t) { // the next owner may have looked for what is left already
		t.server.coordinator.notify(noteChanged, t.id)
	}
}

// take is where the transaction stands.
func (t *Turn) take(log *journal.Log, entries []journal.Entry) {
	t.log, t.entries = log, entries
	t.position.Store(log.Head().Position)
}

// run drives until the transaction rests, and nobody has appended since. Where that
// fails it is due again later.
func (t *Turn) run() {
	returned := false
	defer func() {
		if !returned { // user code ended the goroutine
			t.server.failed(t.id, &interlock.Error{Op: "drive", Name: t.id, Kind: interlock.Bug, Err: errNoReturn})
			t.leave()
			t.server.drop(t)
		}
	}()
	for !returned {
		t.rest()
		t.leave()
		t.server.coordinator.tell(t.id, t.conclusion)
		returned = t.server.release(t)
		t.log, t.due, t.prepared, t.conclusion = nil, true, nil, nil
	}
	if t.awaited.Load() {
		t.server.coordinator.notify(noteRested, t.id)
	}
}

// rest drives until there is nothing to do now, by what was there.
func (t *Turn) rest() {
	if !t.enter() {
		return
	}
	switch err := t.drive(); {
	case lost(err):
		t.server.failed(t.id, err)
		t.server.fail(err)
	case errors.Is(err, ErrForeign):
		t.server.leave(t.Head(), t.due)
	case errors.Is(err, journal.ErrConflict):
		t.outrun.Store(true) // read again, and decide again
	case err != nil && !errors.Is(err, errCrowded) && !errors.Is(err, errYielding):
		t.server.failed(t.id, err)
	}
}

// drive has the protocol drive. A panic of it is the failure of this transaction.
func (t *Turn) drive() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &interlock.Error{Op: "drive", Name: t.id, Kind: interlock.Bug, Err: fmt.Errorf("panic: %v\n%s", r, debug.Stack())}
		}
	}()
	if t.log == nil {
		if err := t.open(); err != nil || t.log == nil {
			return err
		}
	}
	p, err := t.server.coordinator.protocol(t.Head().Type)
	if err != nil {
		return &interlock.Error{Op: "drive", Name: t.id, Kind: interlock.Bug, Err: err}
	}
	if !t.enter() {
		return context.Cause(t.server.ctx)
	}
	return p.Drive(t)
}

// open reads the transaction. One that does not exist any more, or yet, stays nil, and
// one that has ended since it was found to be due.
func (t *Turn) open() error {
	t.outrun.Store(false)
	t.crowded.Store(false)
	t.fresh = false
	log, entries, err := t.server.shard.Open(t.Context(), t.id)
	if err != nil || log == nil || !log.Head().Ended.IsZero() {
		return err
	}
	t.begun, t.former = entries[0].Written.Truncate(time.Millisecond), t.formerly(entries)
	t.take(log, entries)
	return nil
}

// formerly reports whether another owner than this one was the last that had the
// transaction in hand. One that has written nothing is known by the claim, or the due
// time, that it has left: see unfinished.
func (t *Turn) formerly(entries []journal.Entry) bool {
	for _, e := range slices.Backward(entries) {
		if e.Epoch != 0 {
			return e.Epoch != t.Epoch()
		}
	}
	return !t.due
}

// enter takes a slot, unless there is one.
func (t *Turn) enter() bool {
	t.inside = t.inside || t.server.enter()
	return t.inside
}

// leave gives the slot back, if there is one.
func (t *Turn) leave() {
	if t.inside {
		<-t.server.coordinator.slots
	}
	t.inside = false
}

// A Task is one call of a participant.
type Task struct {
	Target  string        // what is busy or broken together; empty has places of its own too
	Timeout time.Duration // of the call, from when it is made, or from its last [Heartbeat]; 0 means 30 seconds
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
	t.leave() // calls need no slot
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
	if t.Holds() != nil { // it may have waited
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
	err := CatchPanic(branch.With(ctx, c), task.Do)
	if class, _ := branch.ClassOf(err); t.server.ctx.Err() == nil {
		at.answered(err == nil || class == branch.ClassFail || class == branch.ClassInProgress)
	}
	return err
}

// CatchPanic calls do and returns a panic of it as an error.
func CatchPanic(ctx context.Context, do func(context.Context) error) (err error) {
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
	h.timer = time.AfterFunc(bound, func() { cancel(fmt.Errorf("the timeout of %q has passed: %w", name, context.DeadlineExceeded)) })
	return context.WithValue(ctx, heartKey{}, h), func() { h.timer.Stop(); cancel(nil) }
}

// Heartbeat restarts the timeout of the call that ctx belongs to. It returns false if the time is
// over or ctx belongs to no call.
func Heartbeat(ctx context.Context) bool {
	h, ok := ctx.Value(heartKey{}).(*heart)
	return ok && ctx.Err() == nil && h.timer.Reset(h.bound)
}
