package twopc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// An Outcome is a transaction as the journal knows it.
type Outcome struct {
	ID       string // the user's; the key if who decided did not know it
	Key      string // in the journal
	State    State
	Decision Decision
	// Transaction is what participants call the run that was decided.
	Transaction string
	Branches    []Branch // that voted yes, of a commit; of an abort those that are heuristic
	Reason      string   // of an abort, or of a person's decision
	Actor       string   // the person who decided, or has seen to a heuristic outcome
	Note        string   // what the latter said
	Halted      string   // why no participant is called to commit any more: owners crash; empty while it goes on
	Decided     time.Time
}

// A Branch is that of one participant.
type Branch struct {
	Participant string
	// Done says that it is known in the journal to be committed. Which ones are is
	// written when all are, or when one is heuristic.
	Done bool
	// Heuristic is what the participant said, if it was finished otherwise than
	// decided.
	Heuristic string
	// Failing is the last error of a participant that cannot commit, and Attempts how often
	// it could not, as far as the journal has them.
	Failing  string
	Attempts int
}

// Look reads what was decided of an id. The error is an [ErrNone] if nothing was: the
// run goes on, was aborted by itself, had one participant, or is so long ago that it was
// forgotten.
func (m *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	log, entries, err := m.coordinator.Journal().Open(ctx, Key(id))
	if err != nil {
		return Outcome{}, err
	}
	if log == nil {
		return Outcome{}, definite("look at transaction", id, ErrNone)
	}
	there, err := understood(id, log, entries)
	if err != nil {
		return Outcome{}, err
	}
	return there.outcome(log.Head().Transaction, entries[0].Written), nil
}

func (m *machine) outcome(key string, at time.Time) Outcome {
	o := Outcome{ID: m.what.ID, Key: key, State: m.state, Decision: m.decision, Transaction: m.name(key),
		Reason: m.what.Reason, Actor: m.what.Actor, Note: m.resolved.Text, Halted: m.halted, Decided: at}
	if o.ID == "" {
		o.ID = key
	}
	if m.resolved.Actor != "" {
		o.Actor = m.resolved.Actor
	}
	for _, p := range m.branches {
		b := Branch{Participant: p.name, Done: p.fate == done, Attempts: p.attempts}
		if b.Heuristic = p.err; p.fate == open {
			b.Heuristic, b.Failing = "", p.err
		}
		o.Branches = append(o.Branches, b)
	}
	return o
}

// Settle waits until nothing of a decided transaction is left to do: all participants
// have committed, so that everybody can see it. The error is an [*AbortedError] if it
// was aborted, a driver.ErrHeuristic if a person has to look, an [ErrHalted], which is
// Uncertain, if it waits for [Engine.Retry], and an [ErrNone] as that of [Engine.Look].
// When ctx ends it is Uncertain.
func (m *Engine) Settle(ctx context.Context, id string) error {
	const op = "settle transaction"
	var halted error
	err := m.coordinator.Await(ctx, Key(id), func(ctx context.Context) (bool, error) {
		there, err := m.read(ctx, id)
		switch {
		case err != nil:
			return false, err
		case there == nil:
			return false, definite(op, id, ErrNone)
		case there.state == Heuristic && there.settled():
			return false, definite(op, id, fmt.Errorf("%w: %s", driver.ErrHeuristic, there.complaint()))
		case there.decision == Abort:
			return false, m.earlier(id, there, nil)
		case there.halted != "":
			halted = there.waits(op, id)
			return true, nil
		}
		return there.ended, nil
	})
	if err != nil {
		return err
	}
	return halted
}

// Unfinished goes through the transactions that are decided and not ended, in the
// order of their keys: what some participant has not committed yet, and what waits for
// a person. Those that have ended cost nothing.
func (m *Engine) Unfinished(ctx context.Context) iter.Seq2[Outcome, error] {
	return m.UnfinishedAfter(ctx, "")
}

// UnfinishedAfter is Unfinished from after a key, for lists in parts.
func (m *Engine) UnfinishedAfter(ctx context.Context, key string) iter.Seq2[Outcome, error] {
	return func(yield func(Outcome, error) bool) {
		for h, err := range m.coordinator.Journal().Unfinished(ctx, key) {
			if err == nil && !strings.HasPrefix(h.Type, protocol+":") {
				continue
			}
			var o Outcome
			if err == nil {
				o, err = m.Look(ctx, h.Transaction)
			}
			if errors.Is(err, ErrNone) { // it was forgotten meanwhile
				continue
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

// Resolve decides what nobody has decided: for a branch in doubt that is too old to be
// presumed aborted. transaction is its XID's. It does not overrule: if the journal has
// another decision, the error is an [ErrDecided]. A decision to commit covers the
// branches that are in doubt at this moment; all participants have to answer, and no run
// of it may be going on anywhere: the operator has made sure that no branch is
// missing. One that turns up later is committed all the same. actor and reason, both
// required, stand in the journal. The branches follow with the next scans.
func (m *Engine) Resolve(ctx context.Context, transaction string, d Decision, actor, reason string) error {
	const op = "resolve transaction"
	r, err := parse(transaction)
	switch {
	case err != nil:
		return bug(op, transaction, err)
	case d != Commit && d != Abort:
		return failure.Bug(op, transaction, "the decision %q is neither commit nor abort", d)
	case actor == "" || reason == "":
		return failure.Bug(op, transaction, "it takes an actor and a reason")
	case m.runs(r):
		return failure.Bug(op, transaction, "it is under way in this process")
	}
	there, err := m.read(ctx, r.key)
	if err == nil && there == nil {
		there, err = m.impose(ctx, r, d, decided{Run: r.sign, Actor: said(actor), Reason: said(reason)})
	}
	if err == nil && there.of(r) != d {
		err = definite(op, transaction, ErrDecided)
	}
	return err
}

// impose is the transaction with a person's decision, or with one that came before it.
func (m *Engine) impose(ctx context.Context, r run, d Decision, what decided) (there *machine, err error) {
	if d == Commit {
		if what.Branches, err = m.waiting(ctx, r); err != nil {
			return nil, err
		}
	}
	return m.put(ctx, r, decide(d, what))
}

// waiting are the participants that have a branch of the run in doubt.
func (m *Engine) waiting(ctx context.Context, r run) ([]string, error) {
	found, err := m.InDoubt(ctx)
	if err != nil {
		return nil, fmt.Errorf("not all participants could be asked: %w", err)
	}
	var names []string
	for _, d := range found {
		if d.XID.Transaction == r.String() && m.participants[d.XID.Branch] != nil {
			names = append(names, d.XID.Branch)
		}
	}
	if len(names) == 0 {
		return nil, definite("resolve transaction", r.String(), errors.New("no participant has a branch of it in doubt"))
	}
	return names, nil
}

// Acknowledge ends a HEURISTIC transaction: a person, actor, has put right what the
// participants did otherwise than decided, or lives with it, and says why. It is
// refused as Definite while it is not HEURISTIC, or branches are still to be committed.
func (m *Engine) Acknowledge(ctx context.Context, id, actor, reason string) error {
	const op = "acknowledge transaction"
	if actor == "" || reason == "" {
		return failure.Bug(op, id, "it takes an actor and a reason")
	}
	log, entries, err := m.coordinator.Journal().Open(ctx, Key(id))
	if err != nil {
		return err
	}
	if log == nil {
		return definite(op, id, ErrNone)
	}
	there, err := understood(id, log, entries)
	if err != nil {
		return err
	}
	if !there.settled() {
		return definite(op, id, fmt.Errorf("it is %s, with %d branches left: there is nothing to acknowledge", there.state, len(there.left())))
	}
	return log.End(ctx, record(recordResolved, "", why{Actor: said(actor), Text: said(reason)}), end())
}
