package twopc

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Outcome is the state of a transaction in the journal. Dead has the heuristic branches; if the
// transaction is halted, it also has those that are not known to be committed.
type Outcome struct {
	coordinator.Summary
	Key         string   // in the journal; also the ID, if the process that decided did not know the user's
	Transaction string   // the name of the decided run at participants
	Branches    []Branch // of a commit, those that voted yes; of an abort, the heuristic ones
	DecidedBy   string   // the operator who decided; empty if it was an engine
	Decided     time.Time
}

// A Branch is the part of one participant.
type Branch struct {
	Participant string `json:"participant"`
	// Done means that the journal has it as committed. That is recorded once all branches
	// are committed, or one is heuristic.
	Done bool `json:"done"`
	// Heuristic is the participant's error, if the branch was finished against the decision.
	Heuristic string `json:"heuristic,omitempty"`
	// Failing is the last error in the journal of a participant that cannot commit, and
	// Attempts the number of its failures.
	Failing  string `json:"error,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

// Look reads the decision on an id. The error is an [ErrNone] if there is none: the run is under
// way, was aborted without a record, had one participant, or its retention is over.
func (m *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	t, err := stored(ctx, m.coordinator.Journal(), "look at transaction", id)
	if err != nil {
		return Outcome{}, err
	}
	return records.Outcome(t), nil
}

func (m *machine) outcome(head driver.Head, entries []journal.Entry) Outcome {
	key := head.Transaction
	o := Outcome{Summary: coordinator.SummaryOf(head), Key: key, Transaction: m.name(key), DecidedBy: m.data.Actor}
	o.ID, o.State, o.Decision, o.Reason, o.Halted, o.Resolved = cmp.Or(m.data.ID, key), m.state, m.decision, m.data.Reason, m.halted, m.resolved
	if len(entries) > 0 {
		o.Decided = entries[0].Written
	}
	for _, p := range m.branches {
		b, e := Branch{Participant: p.name, Done: p.fate == done, Attempts: p.attempts}, StepError{Step: p.name, Err: p.err, Attempts: p.attempts}
		switch {
		case p.fate == againstDecision:
			b.Heuristic = p.err
			o.Dead = append(o.Dead, e)
		case p.fate == open && m.halted != "":
			b.Failing, e.Err = p.err, m.halted
			o.Dead = append(o.Dead, e)
		case p.fate == open && p.err != "":
			b.Failing = p.err
			o.Failing = append(o.Failing, e)
		}
		o.Branches = append(o.Branches, b)
	}
	return o
}

// Wait blocks until a decided transaction has ended: all participants have committed, so its effects
// are visible. The error is:
//
//   - an [*AbortedError] if it was aborted
//   - an [ErrHeuristic] if an operator must act
//   - an [ErrHalted], which is Uncertain, if it waits for [Operator.Retry]
//   - an [ErrNone] as that of [Engine.Look]
//   - Uncertain if ctx ends
func (m *Engine) Wait(ctx context.Context, id string) (o Outcome, err error) {
	const op = "wait for transaction"
	var halted error
	err = m.coordinator.Await(ctx, Key(id), func(ctx context.Context) (bool, error) {
		t, err := stored(ctx, m.coordinator.Journal(), op, id)
		if err != nil {
			return false, err
		}
		there := &t.State
		o = records.Outcome(t)
		switch {
		case there.state == Heuristic && there.settled():
			return false, definite(op, id, fmt.Errorf("%w: %s", ErrHeuristic, there.heuristicErrors()))
		case there.decision == Abort:
			return false, m.outcomeOfOther(id, there, nil)
		case there.halted != "":
			halted = there.haltedError(op, id)
			return true, nil
		}
		return there.ended, nil
	})
	if err != nil {
		return o, err
	}
	return o, halted
}
