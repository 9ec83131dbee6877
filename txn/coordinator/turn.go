package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Turn is one transaction on its way through a coordinator that owns its shard.
// It is for one goroutine.
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
