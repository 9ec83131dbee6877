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
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Turn is one execution of a transaction by the coordinator that owns its shard. It must be
// used by one goroutine.
type Turn struct {
	server      *server
	id          string
	due         bool
	fresh       bool
	hasSlot     bool
	takenOver   bool // a former owner may have made calls
	keepWaiting bool // it has waited for a failing target, and stays in memory
	unanswered  bool // its begin had no answer, and it was not found yet: it may arrive late
	begun       time.Time

	log     *journal.Log
	entries []journal.Entry

	prepared   any         // from BeginPrepared
	conclusion any         // for waiters of this process
	awaited    atomic.Bool // another process waits for it

	position   atomic.Int64  // of the last known record
	conflicted atomic.Bool   // another writer has appended
	crowded    atomic.Bool   // too many transactions wait for one of its targets
	wake       chan struct{} // holds one
}

// Context ends with that of Serve, and with the claim.
func (t *Turn) Context() context.Context { return t.server.ctx }

// ID returns the id of the transaction.
func (t *Turn) ID() string { return t.id }

// Head returns the state of the transaction as far as this process knows it.
func (t *Turn) Head() driver.Head { return t.log.Head() }

// Entries returns the records at the start of the turn.
func (t *Turn) Entries() []journal.Entry { return t.entries }

// Prepared returns the value of [Coordinator.BeginPrepared] if the turn is Fresh, else nil.
func (t *Turn) Prepared() any { return t.prepared }

// Conclude passes the outcome to the waiters of this process: see [Waiter.Wait]. All get the same
// value, so it must not change.
func (t *Turn) Conclude(conclusion any) { t.conclusion = conclusion }

// Begun returns when the transaction began, in whole milliseconds: by the clock of the process that
// began it while that drives it, then by the store's.
func (t *Turn) Begun() time.Time { return t.begun }

// Fresh reports whether this process began the transaction just now, and no call was made for it.
func (t *Turn) Fresh() bool { return t.fresh }

// Due reports whether the transaction was found by its due time or by a nudge.
func (t *Turn) Due() bool { return t.due }

// TakenOver reports whether a former owner of the shard may have made calls of the transaction, and
// this owner has not appended yet. Count take-overs in a row without an answer, because a call may
// crash its process: see [Turn.Exhausted].
func (t *Turn) TakenOver() bool { return t.takenOver }

// Exhausted reports whether this number of take-overs in a row, including this one, makes the
// transaction a dead letter; see Options.TakeOvers.
func (t *Turn) Exhausted(takeOvers int) bool {
	most := t.server.coordinator.options.TakeOvers
	return most > 0 && takeOvers >= most
}

// Epoch returns the epoch of the shard's owner.
func (t *Turn) Epoch() interlock.Token { return t.server.shard.Epoch() }

// Now returns the time by the coordinator's clock.
func (t *Turn) Now() time.Time { return t.server.coordinator.options.Now() }

// Random returns a number in [0,1), for jitter.
func (t *Turn) Random() float64 { return t.server.coordinator.options.Random() }

// Holds returns why no call may be made any more. Either the shard has another owner, or serving has
// ended, or another writer has appended, a [journal.ErrConflict]. Or the transaction is left until it
// is due again: too many wait for one of its targets, see Options.Held, or the shard is about to be
// given to another process, see Options.Yield. It checks the claim's clock at each call.
func (t *Turn) Holds() error {
	if err := t.server.checkClaim(); err != nil {
		return err
	}
	if t.conflicted.Load() {
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

// HandsOver reports whether this owner stops calling, and another one will continue. Then it has not crashed,
// which a protocol records if it counts take-overs.
func (t *Turn) HandsOver() bool {
	gone := t.Holds()
	return gone != nil && !errors.Is(gone, journal.ErrConflict)
}

// Append makes entries durable, and sets when the transaction is due next; the zero time means at most
// Options.Recheck from now, at least half of it. It outlasts the context of Serve, but not the claim. Its errors are those of
// [journal.Log.Append]; Drive returns them.
func (t *Turn) Append(due time.Time, entries ...journal.Entry) error {
	if due.IsZero() {
		due = t.recheck()
	}
	return t.Write(func(ctx context.Context) error { return t.log.Append(ctx, due, entries...) })
}

// recheck returns when the transaction is due again if its protocol has set no time. A time that fits
// stays, because a store then changes no index.
func (t *Turn) recheck() time.Time {
	now, after, due := t.Now(), t.server.coordinator.options.Recheck, t.log.Head().Due
	if left := due.Sub(now); left >= after/2 && left <= after {
		return due
	}
	return now.Add(after)
}

// End is Append with the last entries of the transaction.
func (t *Turn) End(entries ...journal.Entry) error {
	return t.Write(func(ctx context.Context) error { return t.log.End(ctx, entries...) })
}

// Log returns the transaction's log, for appends of other kinds by [Turn.Write].
func (t *Turn) Log() *journal.Log { return t.log }

// Write runs an append to Log under the conditions of [Turn.Append].
func (t *Turn) Write(do func(ctx context.Context) error) error {
	if err := t.server.checkOpen(); err != nil {
		return err
	}
	err := do(context.WithoutCancel(t.server.ctx))
	t.position.Store(t.log.Head().Position)
	return err
}

// Pause waits without a slot. It returns early when one of the failing targets answers again, or
// another writer appends. It returns false if serving has ended or [Turn.Holds] returns an error.
func (t *Turn) Pause(wait time.Duration, targets ...string) bool {
	t.releaseSlot()
	select { // later calls have considered an earlier signal
	case <-t.wake:
	default:
	}
	stop := t.server.coordinator.waitForTargets(t, targets)
	if stop == nil {
		return false
	}
	defer stop()
	t.keepWaiting = t.keepWaiting || len(targets) > 0
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
	return t.server.ctx.Err() == nil && t.acquireSlot() && t.Holds() == nil
}

// take reserves a turn for a transaction, or returns nil if it has one.
func (s *server) take(id string) *Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.yielding.Load() || s.active[id] != nil {
		return nil
	}
	t := &Turn{server: s, id: id, wake: make(chan struct{}, 1)}
	s.active[id] = t
	s.coordinator.addTurn(s.shard.Number(), id)
	return t
}

// release ends a turn. It returns false, and the turn continues, if another writer has appended or the
// transaction was found again in the meantime.
func (s *server) release(t *Turn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.conflicted.Load() && !s.closed && !s.yielding.Load() && s.ctx.Err() == nil {
		return false
	}
	s.forget(t)
	return true
}

// drop ends a turn unconditionally.
func (s *server) drop(t *Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(t)
}

// forget removes a turn. The caller holds the lock.
func (s *server) forget(t *Turn) {
	if delete(s.active, t.id); len(s.active) == 0 {
		hints.Signal(s.idle)
	}
	s.coordinator.removeTurn(s.shard.Number(), t.id)
}

func (c *Coordinator) addTurn(shard int, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.activeTurns++; shard != c.journal.ShardOf(id) {
		c.placed[id] = shard
	}
}

func (c *Coordinator) removeTurn(shard int, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.activeTurns--; c.placed[id] == shard {
		delete(c.placed, id)
	}
}

// launch starts the goroutine of a reserved turn.
func (s *server) launch(t *Turn) bool {
	s.mu.Lock()
	if s.closed { // the next owner drives it
		s.mu.Unlock()
		t.releaseSlot()
		s.release(t)
		return false
	}
	s.work.Add(1)
	go t.run()
	s.mu.Unlock()
	return true
}

// admit drives a reserved transaction after its Begin. If the Begin was certain, no call was made for
// it. If the outcome is unknown, or the transaction was found again meanwhile, it is read.
func (t *Turn) admit(log *journal.Log, err error, entries []journal.Entry, now time.Time) {
	if log != nil {
		t.fresh, t.begun = true, now.Truncate(time.Millisecond)
		t.setState(log, entries)
	} else if interlock.Kind(err) != interlock.Uncertain && t.server.release(t) {
		return
	}
	t.due, t.unanswered = log == nil, log == nil && interlock.Kind(err) == interlock.Uncertain
	if !t.server.launch(t) { // the next owner may have taken over already
		t.server.coordinator.tell(t.server.shard.Number(), t.server.coordinator.noteBegun(t.id), t.id)
	}
}

// setState sets the log and the entries.
func (t *Turn) setState(log *journal.Log, entries []journal.Entry) {
	t.log, t.entries = log, entries
	t.position.Store(log.Head().Position)
}

// A transaction that could not be read or written is tried again after failurePause, up to mostFailures
// times in a row, within 23 s. Then it is due again after Options.Recheck.
const mostFailures = 8

var failurePause = backoff.Policy{First: 100 * time.Millisecond, Max: 10 * time.Second}

// run drives until the transaction rests and no other writer has appended.
func (t *Turn) run() {
	defer t.server.work.Done()
	defer t.releaseSlot() // of a Pause that returned false
	returned := false
	defer func() {
		if !returned { // user code ended the goroutine
			t.server.failed(t.id, &interlock.Error{Op: "drive", Name: t.id, Kind: interlock.Bug, Err: failure.ErrNoReturn})
			t.server.drop(t)
		}
	}()
	for failed := 0; !returned; {
		if failed++; !t.driveOnce() {
			failed = 0
		}
		t.releaseSlot()
		t.server.coordinator.wakeWaiters(t.id, t.conclusion)
		if failed > 0 && failed <= mostFailures && t.Pause(failurePause.Delay(failed, t.Random())) {
			t.conflicted.Store(true) // release returns false
		}
		returned = t.server.release(t)
		t.log, t.due, t.prepared, t.conclusion = nil, true, nil, nil
	}
	if t.awaited.Load() {
		t.server.coordinator.notify(t.server.shard.Number(), noteRested, t.id)
	}
}

// driveOnce drives the transaction once, and handles the error. It reports whether to try again: the
// store failed, or a begin without an answer may arrive late.
func (t *Turn) driveOnce() (again bool) {
	if !t.acquireSlot() {
		return false
	}
	switch err := t.drive(); {
	case ownershipLost(err):
		t.server.failed(t.id, err)
		t.server.fail(err)
	case errors.Is(err, ErrForeign):
		t.server.reportForeign(t.Head(), t.due)
	case errors.Is(err, journal.ErrConflict):
		t.conflicted.Store(true) // read again, and decide again
	case err != nil && !errors.Is(err, errCrowded) && !errors.Is(err, errYielding):
		t.server.failed(t.id, err)
		return interlock.Kind(err) == interlock.Retryable || interlock.Kind(err) == interlock.Uncertain
	}
	return t.unanswered
}

// drive calls the protocol. A panic is a failure of this transaction.
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
	if !t.acquireSlot() {
		return context.Cause(t.server.ctx)
	}
	return p.Drive(t)
}

// open reads the transaction. log stays nil if it does not exist or has ended. If it is in another
// shard, the owner of that shard is notified.
func (t *Turn) open() error {
	changed := t.conflicted.Swap(false)
	t.crowded.Store(false)
	t.fresh = false
	log, entries, err := t.server.shard.Open(t.Context(), t.id)
	t.unanswered = t.unanswered && log == nil
	if err != nil || log == nil || !log.Head().Ended.IsZero() {
		return err
	}
	if shard := log.Head().Shard; shard != t.server.shard.Number() {
		t.forward(shard, changed)
		return nil
	}
	t.begun, t.takenOver = entries[0].Written.Truncate(time.Millisecond), t.ownedBefore(entries)
	t.setState(log, entries)
	return nil
}

// forward passes on the notifications for which the turn was started.
func (t *Turn) forward(shard int, changed bool) {
	if changed {
		t.server.coordinator.tell(shard, noteChanged, t.id)
	}
	if t.awaited.Swap(false) {
		t.server.coordinator.tell(shard, noteAwaited, t.id)
	}
}

// ownedBefore reports whether another owner was the last that drove the transaction. The claim shows
// an owner that has written nothing: see unfinished.
func (t *Turn) ownedBefore(entries []journal.Entry) bool {
	for _, e := range slices.Backward(entries) {
		if e.Epoch != 0 {
			return e.Epoch != t.Epoch()
		}
	}
	return !t.due
}

// acquireSlot waits for a slot, if the turn has none.
func (t *Turn) acquireSlot() bool {
	if t.hasSlot {
		return true
	}
	select {
	case t.server.coordinator.slots <- struct{}{}:
		t.hasSlot = true
	case <-t.server.ctx.Done():
	}
	return t.hasSlot
}

// releaseSlot releases the slot, if the turn has one.
func (t *Turn) releaseSlot() {
	if t.hasSlot {
		<-t.server.coordinator.slots
	}
	t.hasSlot = false
}

// A Task is one call of a participant.
type Task struct {
	Target  string        // a system that is busy or broken as a whole; empty is also a target
	Timeout time.Duration // of the call since its start or its last [Heartbeat]; 0 means 30 seconds
	MaxTime time.Duration // of the call since its start; 0 means that only Timeout bounds it
	Call    branch.Call   // Round sets its Epoch, its Begun if zero, and its Deadline unless it is earlier
	// Do makes the call. It returns when ctx ends.
	Do func(ctx context.Context) error
}

// errNotCalled is the result of a task that was not called, because no call may be made any more.
var errNotCalled = errors.New("it was not called")

// Round makes calls concurrently, each in a goroutine and a place of its target, without the slot,
// and returns their results. A panic is a [branch.Unknown] error, and so is the end of the goroutine.
// If no call may be made any more, the result of a task that was not called is a [branch.Retry]
// error; Holds returns the reason.
func (t *Turn) Round(tasks ...Task) []error {
	t.releaseSlot() // calls need no slot
	errs := make([]error, len(tasks))
	var work sync.WaitGroup
	for i, task := range tasks {
		errs[i] = branch.Unknown(failure.ErrNoReturn)
		work.Go(func() { errs[i] = t.call(task) })
	}
	work.Wait()
	t.acquireSlot() // if it fails, serving has ended, and Append still works
	return errs
}

func (t *Turn) call(task Task) error {
	at := t.server.coordinator.acquireTarget(task.Target)
	defer t.server.coordinator.releaseTarget(at)
	if !at.enter(t) {
		return branch.Retry(errNotCalled)
	}
	defer at.leave()
	if t.Holds() != nil { // checked again after a wait
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
	ctx, end := withCallTimeout(t.server.ctx, c.Deadline.Sub(now))
	defer end()
	most := task.MaxTime
	if left := task.Call.Deadline.Sub(now); !task.Call.Deadline.IsZero() && (most <= 0 || left < most) {
		most = max(left, 1) // heartbeats do not extend the deadline
	}
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = WithTimeout(ctx, most)
		defer cancel()
	}
	err := Call(branch.With(ctx, c), task.Do)
	if t.server.ctx.Err() == nil {
		at.answered(isAnswer(err))
	}
	return err
}

// isAnswer reports whether the target has decided: it succeeded, refused, or still works.
func isAnswer(err error) bool {
	class, _ := branch.ClassOf(err)
	return err == nil || class == branch.ClassFail || class == branch.ClassInProgress
}

// Call calls do. A panic is an error of unknown outcome. An error without the target's answer, after ctx has
// ended, begins with the cause, such as the timeout: clients only say that the context was canceled.
func Call(ctx context.Context, do func(context.Context) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = branch.Unknown(fmt.Errorf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	err = do(ctx)
	if !isAnswer(err) && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%v: %w", context.Cause(ctx), err) // the cause does not classify the error
	}
	return err
}

// WithTimeout is [context.WithTimeout] for a call: the cause says how long the call may take.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, callTimeoutError(d))
}

// Delay returns the pause after a number of failed calls, of which the last one failed with class c and
// the target asks for the delay after, by [branch.ClassOf]. A target that processes the call sets the pause;
// any other pause is at least after, or most if that is less. A pause is at least a millisecond, so that
// calls that fail at once do not occupy a processor.
func Delay(first, most time.Duration, c branch.Class, after time.Duration, failed int, random float64) time.Duration {
	if c == branch.ClassInProgress {
		return max(after, first/8, time.Millisecond)
	}
	return max(backoff.Policy{First: first, Max: most}.Delay(max(failed, 1), random), min(after, most), time.Millisecond)
}

// A FailureLog selects the failed calls in a row that a protocol records: the fourth, eighth, sixteenth and
// so on, one an hour, and those that end the count of take-overs. It is for packages of protocols.
type FailureLog struct {
	last time.Time
	n    int
}

// Records reports whether to record failure number n. A call that does not count as a failure repeats n.
func (l *FailureLog) Records(n, takeOvers int, now time.Time) bool {
	double := n >= 4 && n&(n-1) == 0 && n != l.n
	if takeOvers == 0 && !double && (l.last.IsZero() || now.Sub(l.last) < time.Hour) {
		return false
	}
	l.last, l.n = now, n
	return true
}

// callTimeout is the timer of a call.
type callTimeout struct {
	timer   *time.Timer
	timeout time.Duration
}

type callTimeoutKey struct{}

// callTimeoutError is the cause of a call's context that ended by its timeout.
type callTimeoutError time.Duration

func (e callTimeoutError) Error() string {
	return fmt.Sprintf("the call took longer than %v", time.Duration(e).Round(time.Millisecond))
}

func (e callTimeoutError) Unwrap() error { return context.DeadlineExceeded }

// withCallTimeout returns a context that ends when the call has sent no heartbeat for bound.
func withCallTimeout(ctx context.Context, bound time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &callTimeout{timeout: bound}
	h.timer = time.AfterFunc(bound, func() { cancel(callTimeoutError(bound)) })
	return context.WithValue(ctx, callTimeoutKey{}, h), func() { h.timer.Stop(); cancel(nil) }
}

// Heartbeat restarts the timeout of the call that ctx belongs to. It returns false if the time is
// over or ctx belongs to no call.
func Heartbeat(ctx context.Context) bool {
	h, ok := ctx.Value(callTimeoutKey{}).(*callTimeout)
	return ok && ctx.Err() == nil && h.timer.Reset(h.timeout)
}
