package twopc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
)

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
