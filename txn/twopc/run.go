package twopc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
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

// prepare asks all participants for their votes, at once. A branch that gave none is
// abandoned.
func (m *Engine) prepare(ctx context.Context, r run, branches []*working) []ballot {
	ctx, cancel := context.WithTimeout(ctx, m.options.Prepare)
	defer cancel()
	ballots := make([]ballot, len(branches))
	var all sync.WaitGroup
	for i, b := range branches {
		all.Go(func() {
			vote, err := b.preparing.Prepare(calling(ctx, branch.Call{Attempt: 1}, r, b.name, branch.Prepare))
			ballots[i] = ballot{b.name, vote, err}
			if err != nil {
				m.abandon(ctx, []*working{b})
			}
		})
	}
	all.Wait()
	return ballots
}

// calling is a context that says which call this is: for participants in other
// processes. c is what is known of it; whatever call ctx is part of itself, of another
// transaction, is not.
func calling(ctx context.Context, c branch.Call, r run, name string, op branch.Operation) context.Context {
	c.Transaction, c.Branch, c.Operation, c.Begun = r.String(), name, op, r.began
	if deadline, bound := ctx.Deadline(); bound { // a coordinator's call has its bound in c alone
		c.Deadline = deadline
	}
	return branch.With(ctx, c)
}

// commit takes the decision. Only what stands in the journal counts: if it is not
// known what does, an abort is put there first.
func (m *Engine) commit(ctx context.Context, id string, r run, yes []string) error {
	ctx = context.WithoutCancel(ctx) // the journal has its own bound
	err := m.coordinator.Begin(ctx, r.key, m.kind(), decide(Commit, decided{ID: id, Run: r.sign, Branches: yes}))
	if err == nil {
		m.decided(r, Commit, "")
		return nil
	}
	clean, cancel := m.clean(ctx)
	defer cancel()
	there, late := m.presume(clean, r, decided{ID: id, Run: r.sign, Reason: said("the decision to commit was not answered: " + err.Error())})
	switch {
	case late != nil:
		return uncertain("decide transaction", id, errors.Join(err, late))
	case there.of(r) == Commit:
		m.decided(r, Commit, "")
		return nil
	}
	m.rollBack(ctx, r, yes)
	return m.earlier(id, there, nil)
}

// rollBack tells branches that they are aborted, for a time: those that do not hear
// are found in doubt later.
func (m *Engine) rollBack(ctx context.Context, r run, names []string) {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { m.rollBackOne(ctx, r, name) })
	}
	all.Wait()
}

func (m *Engine) rollBackOne(ctx context.Context, r run, name string) {
	var c branch.Call
	for attempt := 1; ; attempt++ {
		c.Attempt = attempt
		err := m.participants[name].Rollback(calling(ctx, c, r, name, branch.Rollback), r.xid(name))
		if err == nil {
			return
		}
		if errors.Is(err, driver.ErrHeuristic) {
			m.found(ctx, r, name, err)
			return
		}
		wait := pause.Delay(attempt, m.coordinator.Random())
		if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(deadline) < wait {
			wait = 0
		}
		m.tried(observe.TwoPCTried{Transaction: r.String(), Participant: name, Attempt: attempt, Err: err, Again: wait})
		if wait == 0 || !sleep(ctx, wait) {
			return
		}
	}
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}
