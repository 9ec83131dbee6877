package twopc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Run has work done in branches of several participants, and commits them all or
// none. id is 1 to driver.MaxTransaction bytes and good for one commit: if the journal
// knows it as committed, Run returns nil at once, without running work. Two runs of one
// id at once are rolled back but for one. Run blocks until the decision is taken; see
// [Engine.Wait] for when all can see it.
//
// The error is nil if the transaction was committed, by this run or by another one, or
// changed nothing. It is an [*AbortedError] if this run has had no effect, which is
// Retryable after a deadlock and the like; Run does not run work again. It is Uncertain
// if the journal did not answer when it was to decide, or a single participant when it
// was to commit: of the former [Engine.Look] tells, once the journal answers again. It
// is Retryable, too, if the journal did not answer before any work was done. A panic of
// work aborts, and goes on to the caller.
//
// When ctx ends before the decision is on its way, the transaction is aborted.
func (m *Engine) Run(ctx context.Context, id string, work func(ctx context.Context, t *T) error) error {
	const op = "run transaction"
	if err := checkID(op, id); err != nil {
		return err
	}
	if work == nil {
		return failure.Bug(op, id, "there is no function to run")
	}
	if there, err := m.read(ctx, id); err != nil || there != nil {
		return m.earlier(id, there, unread(op, id, err))
	}
	t := &T{engine: m, run: begin(id, m.coordinator.Now(), m.chance())}
	defer m.enlist(t.run)()
	if err := m.worked(ctx, t, work); err != nil {
		return m.aborted(id, t.run, err)
	}
	branches := t.close()
	if len(branches) == 1 {
		return m.commitOne(ctx, id, t.run, branches[0])
	}
	return m.commitAll(ctx, id, t.run, branches)
}

// aborted is the outcome of a run that has decided so by itself, without a record.
func (m *Engine) aborted(id string, r run, why error) error {
	m.decided(r, Abort, why.Error())
	return &AbortedError{ID: id, Reason: why}
}

// earlier is the outcome of another run.
func (m *Engine) earlier(id string, there *machine, err error) error {
	if err != nil || there.decision == Commit {
		return err
	}
	return &AbortedError{ID: id, Reason: errors.New(there.what.Reason), Recorded: true}
}

// unread is the error of a run that could not read the outcome of another one, and has done
// nothing.
func unread(op, id string, err error) error {
	if err == nil || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Retryable, Err: fmt.Errorf("nothing was done: %w", err)}
}

// worked runs the function. If it fails or panics, nothing is left of its branches.
func (m *Engine) worked(ctx context.Context, t *T, work func(context.Context, *T) error) (err error) {
	kept := false
	defer func() {
		if !kept {
			m.abandon(ctx, t.close())
		}
	}()
	if err = work(ctx, t); err == nil {
		err = context.Cause(ctx)
	}
	kept = err == nil
	return err
}

// abandon frees what branches that are not prepared have here. What a participant
// says to it changes nothing: the session's end does the same.
func (m *Engine) abandon(ctx context.Context, branches []*working) {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, b := range branches {
		all.Go(func() { _ = b.preparing.Abandon(ctx) })
	}
	all.Wait()
}

// commitOne is the whole of a transaction with one participant.
func (m *Engine) commitOne(ctx context.Context, id string, r run, b *working) error {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	err := b.preparing.CommitOne(ctx)
	if err == nil {
		return nil
	}
	m.abandon(ctx, []*working{b})
	if interlock.Kind(err) == interlock.Uncertain {
		return uncertain("commit transaction", id, err)
	}
	return m.aborted(id, r, err)
}

// commitAll is the first phase, and the decision.
func (m *Engine) commitAll(ctx context.Context, id string, r run, branches []*working) error {
	t := count(m.prepare(ctx, r, branches))
	if t.against == nil {
		t.against = context.Cause(ctx)
	}
	if t.against != nil {
		m.rollBack(ctx, r, slices.Concat(t.yes, t.perhaps))
		return m.aborted(id, r, t.against)
	}
	if len(t.yes) == 0 {
		return nil
	}
	return m.commit(ctx, id, r, t.yes)
}
