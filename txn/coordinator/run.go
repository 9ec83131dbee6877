package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
		t.server.coordinator.ring(ringChanged, t.id)
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
		t.server.coordinator.ring(ringRested, t.id)
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
