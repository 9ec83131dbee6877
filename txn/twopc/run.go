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
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// T is a transaction while its function runs. It is safe for concurrent use.
type T struct {
	engine *Engine
	run    run

	mu       sync.Mutex
	closed   bool
	branches []*openBranch // in the order of Join
}

// openBranch is a branch of a running transaction.
type openBranch struct {
	name      string
	preparing driver.Preparing // nil while it is being opened
}

// XID returns the XID of the branch at a resource, joined or not.
func (t *T) XID(resource string) driver.XID { return t.run.xid(resource) }

// Join opens the branch of a transaction at this participant, at most one. Its work becomes
// visible when the transaction commits, and is lost otherwise. Use the branch until the function
// passed to Run returns.
func (r Definition[B]) Join(ctx context.Context, t *T) (B, error) {
	var none B
	if _, err := t.engine.participant(r.name); err != nil {
		return none, err
	}
	if err := t.reserve(r.name); err != nil {
		return none, err
	}
	b, p, err := r.preparer.Begin(ctx, t.run.xid(r.name))
	if err = t.open(ctx, r.name, p, err); err != nil {
		return none, err
	}
	return b, nil
}

// reserve adds a branch before it is opened.
func (t *T) reserve(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return failure.Bug("join", name, "the transaction's function has returned")
	}
	for _, b := range t.branches {
		if b.name == name {
			return failure.Bug("join", name, "the transaction has already joined it: use the branch of the first call")
		}
	}
	t.branches = append(t.branches, &openBranch{name: name})
	return nil
}

// open completes a reserved branch, or removes it after an error. A branch that was opened after the
// function had returned is abandoned.
func (t *T) open(ctx context.Context, name string, p driver.Preparing, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.branches, func(b *openBranch) bool { return b.name == name })
	if err == nil && !t.closed {
		t.branches[i].preparing = p
		return nil
	}
	t.branches = slices.Delete(t.branches, i, i+1)
	if err != nil {
		return failure.About("join", name, err)
	}
	clean, cancel := t.engine.clean(ctx)
	defer cancel()
	err = errors.New("the transaction's function has returned meanwhile")
	if left := p.Abandon(clean); left != nil {
		err = fmt.Errorf("%w, and the branch could not be abandoned: %w", err, left)
	}
	return bug("join", name, err)
}

// close rejects further branches, and returns the open ones.
func (t *T) close() []*openBranch {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var prepared []*openBranch
	for _, b := range t.branches {
		if b.preparing != nil {
			prepared = append(prepared, b)
		}
	}
	return prepared
}

// Run calls work, which opens branches at several participants, and commits all branches or none. id
// has 1 to driver.MaxTransaction bytes. If it is already committed, Run returns nil without calling
// work. Of concurrent runs of one id at most one is committed. Run blocks
// until the decision is durable; [Engine.Wait] waits until all participants have committed.
//
// The error is nil if the transaction was committed, by this run or another one, or changed nothing.
// Otherwise it is:
//
//   - an [*AbortedError] if this run had no effect. It is Retryable after a deadlock and similar
//     errors; Run does not repeat work
//   - Uncertain if the journal did not answer the decision, or a single participant its commit. In
//     the first case [Engine.Look] returns the decision once the journal answers
//   - Retryable if the journal did not answer before any work was done
//
// A panic of work aborts the transaction and continues in the caller. If ctx ends before the decision
// is sent, the transaction is aborted.
func (m *Engine) Run(ctx context.Context, id string, work func(ctx context.Context, t *T) error) error {
	const op = "run transaction"
	if err := driver.CheckTransaction(op, id); err != nil {
		return err
	}
	if work == nil {
		return failure.Bug(op, id, "there is no function to run")
	}
	if recorded, err := m.read(ctx, id); err != nil || recorded != nil {
		return m.outcomeOfOther(id, recorded, readFailed(op, id, err))
	}
	t := &T{engine: m, run: begin(id, m.coordinator.Now(), m.random())}
	defer m.markRunning(t.run)()
	if err := m.runWork(ctx, t, work); err != nil {
		return m.aborted(id, t.run, err)
	}
	branches := t.close()
	if len(branches) == 1 {
		return m.commitOne(ctx, id, t.run, branches[0])
	}
	return m.commitAll(ctx, id, t.run, branches)
}

// aborted returns the error of a run that aborts without a record.
func (m *Engine) aborted(id string, r run, why error) error {
	m.decided(r, Abort, why.Error())
	return &AbortedError{ID: id, Reason: why}
}

// outcomeOfOther returns the outcome of another run.
func (m *Engine) outcomeOfOther(id string, recorded *machine, err error) error {
	if err != nil || recorded.decision == Commit {
		return err
	}
	return &AbortedError{ID: id, Reason: errors.New(recorded.data.Reason), Recorded: true}
}

// readFailed returns the error of a run that could not read the outcome of another run and did nothing.
func readFailed(op, id string, err error) error {
	if err == nil || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Retryable, Err: fmt.Errorf("nothing was done: %w", err)}
}

// runWork runs the function. If it fails or panics, its branches are abandoned.
func (m *Engine) runWork(ctx context.Context, t *T, work func(context.Context, *T) error) (err error) {
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

// abandon releases branches that are not prepared. An error is ignored: the end of the session does
// the same.
func (m *Engine) abandon(ctx context.Context, branches []*openBranch) {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, b := range branches {
		all.Go(func() { _ = coordinator.Call(ctx, b.preparing.Abandon) })
	}
	all.Wait()
}

// commitOne commits a transaction with one participant.
func (m *Engine) commitOne(ctx context.Context, id string, r run, b *openBranch) error {
	ctx, cancel := m.clean(ctx)
	defer cancel()
	err := coordinator.Call(ctx, b.preparing.CommitOne)
	if err == nil {
		return nil
	}
	m.abandon(ctx, []*openBranch{b})
	if interlock.Kind(err) == interlock.Uncertain {
		return uncertain("commit transaction", id, err)
	}
	return m.aborted(id, r, err)
}

// commitAll runs the first phase, and decides.
func (m *Engine) commitAll(ctx context.Context, id string, r run, branches []*openBranch) error {
	t := countVotes(m.prepare(ctx, r, branches))
	if t.abortReason == nil {
		t.abortReason = context.Cause(ctx)
	}
	if t.abortReason != nil {
		m.rollBack(ctx, r, slices.Concat(t.yes, t.unclear))
		return m.aborted(id, r, t.abortReason)
	}
	if len(t.yes) == 0 {
		return nil
	}
	return m.commit(ctx, id, r, t.yes)
}

// prepare asks all participants for their votes concurrently. A branch without a vote is abandoned.
func (m *Engine) prepare(ctx context.Context, r run, branches []*openBranch) []ballot {
	ctx, cancel := coordinator.WithTimeout(ctx, m.options.Prepare)
	defer cancel()
	ballots := make([]ballot, len(branches))
	var all sync.WaitGroup
	for i, b := range branches {
		ballots[i] = ballot{name: b.name, err: failure.ErrNoReturn}
		all.Go(func() {
			err := coordinator.Call(withCall(ctx, 1, r, b.name, branch.Prepare), func(ctx context.Context) (err error) {
				ballots[i].vote, err = b.preparing.Prepare(ctx)
				return err
			})
			if ballots[i].err = err; err != nil {
				m.abandon(ctx, []*openBranch{b})
			}
		})
	}
	all.Wait()
	return ballots
}

// call commits or rolls back a branch. A panic of the participant is an error of unknown outcome.
func (m *Engine) call(ctx context.Context, attempt int, r run, name string, op branch.Operation) error {
	do := m.participants[name].Rollback
	if op == branch.Commit {
		do = m.participants[name].Commit
	}
	return coordinator.Call(withCall(ctx, attempt, r, name, op), func(ctx context.Context) error { return do(ctx, r.xid(name)) })
}

// withCall returns a context with the call, for participants in other processes. It replaces the call
// of another transaction in ctx.
func withCall(ctx context.Context, attempt int, r run, name string, op branch.Operation) context.Context {
	deadline, _ := ctx.Deadline()
	return branch.With(ctx, branch.Call{Transaction: r.String(), Branch: name, Operation: op, Attempt: attempt, Begun: r.began, Deadline: deadline})
}

// commit records the decision. If the outcome of the append is unknown, it tries to record an abort, and
// follows the decision in the journal.
func (m *Engine) commit(ctx context.Context, id string, r run, yes []string) error {
	ctx = context.WithoutCancel(ctx) // the journal has its own bound
	err := m.coordinator.Begin(ctx, r.key, m.kind(), decide(Commit, decideData{ID: id, Run: r.sign, Branches: yes}))
	if err == nil {
		m.decided(r, Commit, "")
		return nil
	}
	clean, cancel := m.clean(ctx)
	defer cancel()
	recorded, late := m.readOrAbort(clean, r, decideData{ID: id, Run: r.sign, Reason: truncated("the decision to commit was not answered: " + err.Error())})
	switch {
	case late != nil:
		return uncertain("decide transaction", id, errors.Join(err, late))
	case recorded.decisionFor(r) == Commit:
		m.decided(r, Commit, "")
		return nil
	}
	m.rollBack(ctx, r, yes)
	return m.outcomeOfOther(id, recorded, nil)
}

// rollBack rolls branches back, within a bound. Branches that it does not reach are found in doubt later.
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
	for attempt := 1; ; attempt++ {
		err := m.call(ctx, attempt, r, name, branch.Rollback)
		if err == nil {
			return
		}
		if errors.Is(err, driver.ErrHeuristic) {
			m.recordHeuristicAbort(ctx, r, name, err)
			return
		}
		_, after := branch.ClassOf(err)
		wait := coordinator.Delay(pause.First, pause.Max, branch.ClassUnknown, after, attempt, m.coordinator.Random())
		if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(deadline) < wait {
			wait = 0
		}
		coordinator.Emit(m.options.Hooks.Tried, observe.TwoPCTried{Transaction: r.String(), Participant: name, Attempt: attempt, Err: err, Again: wait})
		if wait == 0 || !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// read returns the transaction of an id or a key, or nil if the journal has none.
func (m *Engine) read(ctx context.Context, id string) (*machine, error) {
	t, err := m.stored(ctx, "read transaction", id)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	return &t.State, err
}

// stored returns the transaction of an id or a key.
func (m *Engine) stored(ctx context.Context, op, id string) (coordinator.Transaction[machine], error) {
	t, err := records.Read(ctx, m.coordinator.Journal(), op, Key(id))
	if err == nil {
		err = t.State.checkID(id)
	}
	return t, err
}

// checkID returns an error if the transaction has another id with the same key.
func (m *machine) checkID(id string) error {
	if m.data.ID != "" && m.data.ID != id && Key(id) != id {
		return &MismatchError{ID: id, Problem: fmt.Sprintf("%q has the same key", m.data.ID)}
	}
	return nil
}

// readOrAbort returns the transaction of a run. If the journal has none, it records an abort first, so
// that no process can commit.
func (m *Engine) readOrAbort(ctx context.Context, r run, abort decideData) (*machine, error) {
	recorded, err := m.read(ctx, r.key)
	if err != nil || recorded != nil {
		return recorded, err
	}
	decision := decide(Abort, abort)
	// It ends later, so that it takes the records of branches that cannot be rolled back.
	_, err = m.coordinator.Journal().Begin(ctx, r.key, m.kind(), m.coordinator.Now().Add(m.options.Patience), decision)
	return m.decidedAs(ctx, r, decision, err)
}

// decidedAs returns the transaction with a decision, or with an earlier one; err is that of the append.
func (m *Engine) decidedAs(ctx context.Context, r run, decision journal.Entry, err error) (*machine, error) {
	switch {
	case errors.Is(err, journal.ErrExists):
		return m.readEarlier(ctx, r)
	case err != nil:
		return nil, err
	}
	recorded, err := replay([]journal.Entry{decision})
	if err == nil {
		m.decided(r, recorded.decision, recorded.data.Reason)
	}
	return &recorded, err
}

// readEarlier returns the transaction that was decided before.
func (m *Engine) readEarlier(ctx context.Context, r run) (*machine, error) {
	recorded, err := m.read(ctx, r.key)
	if err == nil && recorded == nil {
		err = &interlock.Error{Op: "decide transaction", Name: r.key, Kind: interlock.Retryable,
			Err: errors.New("the retention of the journal is so short that it would delete the decision at once")}
	}
	return recorded, err
}

func (m *Engine) decided(r run, d Decision, reason string) {
	coordinator.Emit(m.options.Hooks.Decided, observe.TwoPCDecided{Transaction: r.String(), Commit: d == Commit, Reason: reason})
}

// recordHeuristicAbort records a branch that an abort could not roll back. If the abort has ended, or
// another run of the id is recorded, only the hook is called. The transaction is due at the next reminder.
func (m *Engine) recordHeuristicAbort(ctx context.Context, r run, name string, why error) {
	due, e := m.coordinator.Now().Add(m.options.Remind), heuristic(name, why)
	_, err := m.coordinator.Journal().Begin(ctx, r.key, m.kind(), due,
		decide(Abort, decideData{Run: r.sign, Reason: "it was to be rolled back, and could not be"}), e)
	for errors.Is(err, journal.ErrExists) || errors.Is(err, journal.ErrConflict) {
		var t coordinator.Transaction[machine]
		if t, err = m.stored(ctx, "record heuristic outcome", r.key); err != nil {
			break
		}
		if _, other := t.State.with(e); other != nil || t.State.decision != Abort || t.State.data.Run != r.sign {
			break // also if another process has recorded the branch
		}
		err = t.Log.Append(ctx, due, e)
	}
	coordinator.Emit(m.options.Hooks.Heuristic, observe.TwoPCHeuristic{Transaction: r.String(), Participants: []string{name}, Err: errors.Join(why, err)})
}
