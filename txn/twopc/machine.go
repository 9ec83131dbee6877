package twopc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// State is where a transaction stands in the journal; see [coordinator.State]. One that
// nobody has decided is not there at all.
type State = coordinator.State

// The states. A decision to commit goes on to COMMITTED when the last participant has
// done it, or to HEURISTIC.
const (
	Committing State = "COMMITTING"         // decided; what is left is committed, however long it takes
	Committed  State = "COMMITTED"          // by all participants
	Aborted    State = "ABORTED"            // whatever is prepared is rolled back
	Heuristic  State = "HEURISTIC"          // a branch was finished otherwise: a person has to look
	Resolved         = coordinator.Resolved // a person has seen to a heuristic outcome
)

// States are all states of a decided transaction.
var States = []State{Committing, Heuristic, Committed, Aborted, Resolved}

// fate is what is known of a branch that is to be committed.
type fate int

const (
	open fate = iota
	done
	otherwise // finished against the decision
)

// progress is a branch that is to be committed.
type progress struct {
	name     string
	fate     fate
	err      string
	attempts int // that failed, as far as the journal knows
}

// machine is a transaction as its records tell it. It is pure: with says what is so
// after more records, or that they cannot follow.
type machine struct {
	state    State // empty before the decision
	decision Decision
	what     decided
	branches []progress
	resolved By
	ended    bool

	takeOvers int    // in a row, without an answer in between
	halted    string // why no participant is called to commit; empty while it goes on
}

// replay is the machine after all records of a transaction.
func replay(entries []journal.Entry) (machine, error) { return machine{}.with(entries...) }

// with is the machine after records that follow what it has seen; m stays as it is.
func (m machine) with(entries ...journal.Entry) (machine, error) {
	m.branches = slices.Clone(m.branches)
	for _, e := range entries {
		if err := m.apply(e); err != nil {
			return machine{}, fmt.Errorf("record %s %q in state %q: %w", e.Kind, e.Step, m.state, err)
		}
	}
	return m, nil
}

func (m *machine) apply(e journal.Entry) error {
	if (m.state == "") != (e.Kind == recordDecide) || m.ended {
		return errOrder
	}
	if m.halted != "" && e.Kind != recordRetry && e.Kind != recordRemind {
		return errOrder
	}
	if e.Kind != recordTaken && e.Kind != recordHalted {
		m.takeOvers = 0
	}
	switch e.Kind {
	case recordTaken, recordHalted, recordFailing, recordRetry:
		return m.suffer(e)
	case recordDecide:
		return m.decide(e)
	case recordDone, recordHeuristic:
		return m.answer(e)
	case recordRemind:
		if m.state != Heuristic && m.halted == "" {
			return errOrder
		}
		return nil
	case recordResolved:
		if !m.settled() {
			return errOrder
		}
		var w why
		err := json.Unmarshal(e.Data, &w)
		m.state, m.resolved = Resolved, By{Actor: w.Actor, Reason: cmp.Or(w.Reason, w.Text)}
		return err
	case recordEnd:
		return m.end()
	}
	return coordinator.ErrRecord
}

func (m *machine) decide(e journal.Entry) error {
	if err := json.Unmarshal(e.Data, &m.what); err != nil {
		return err
	}
	switch m.decision = Decision(e.Step); m.decision {
	case Abort:
		m.state = Aborted
	case Commit:
		if len(m.what.Branches) == 0 {
			return fmt.Errorf("a commit needs at least one branch")
		}
		m.state = Committing
		for _, name := range m.what.Branches {
			m.branches = append(m.branches, progress{name: name})
		}
	default:
		return errOrder
	}
	return nil
}

// answer takes what a participant said to the commit of its branch, or that it could
// not roll it back. Which branches an abort has is not known before.
func (m *machine) answer(e journal.Entry) error {
	i := slices.IndexFunc(m.branches, func(p progress) bool { return p.name == e.Step })
	if i < 0 && m.decision == Abort && e.Kind == recordHeuristic {
		i = len(m.branches)
		m.branches = append(m.branches, progress{name: e.Step})
	}
	if i < 0 || m.branches[i].fate != open || m.state == Resolved {
		return errOrder
	}
	if e.Kind == recordDone {
		m.branches[i].fate = done
		return nil
	}
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	m.branches[i].fate, m.branches[i].err = otherwise, w.Text
	m.state = Heuristic
	return nil
}

// end stands behind what has nothing left to do. That of a commit says itself that
// all branches were committed.
func (m *machine) end() error {
	switch m.state {
	case Committing:
		m.state = Committed
		for i := range m.branches {
			m.branches[i].fate = done
		}
	case Aborted, Resolved:
	default:
		return errOrder
	}
	m.ended = true
	return nil
}

// left are the branches that are still to be committed.
func (m *machine) left() []string { return m.named(open) }

// settled reports whether nothing is left to do but for a person.
func (m *machine) settled() bool { return m.state == Heuristic && len(m.left()) == 0 }

// named are the branches of a fate.
func (m *machine) named(f fate) []string {
	var names []string
	for _, p := range m.branches {
		if p.fate == f {
			names = append(names, p.name)
		}
	}
	return names
}

// of is what is decided of a run: to commit the one that the record names, and to
// abort every other.
func (m *machine) of(r run) Decision {
	if m.what.Run == r.sign {
		return m.decision
	}
	return Abort
}

// ballot is what a participant said to prepare.
type ballot struct {
	name string
	vote driver.Vote
	err  error
}

// tally is what follows from the ballots of a transaction.
type tally struct {
	against error    // why it is aborted; nil if it is not
	yes     []string // voted so
	perhaps []string // gave no clear answer, and may be prepared
}

// count is the pure heart of the first phase: one that is not for it is against it.
func count(ballots []ballot) tally {
	var t tally
	var against []error
	for _, b := range ballots {
		switch {
		case b.err != nil:
			against = append(against, fmt.Errorf("%s voted no: %w", b.name, b.err))
			if interlock.Kind(b.err) == interlock.Uncertain {
				t.perhaps = append(t.perhaps, b.name)
			}
		case b.vote == driver.VoteYes:
			t.yes = append(t.yes, b.name)
		case b.vote != driver.VoteReadOnly:
			against = append(against, fmt.Errorf("%s voted no", b.name))
		}
	}
	t.against = errors.Join(against...)
	return t
}

// verdict is what is to be done with a branch in doubt.
type verdict string

const (
	leave    verdict = "leave" // somebody may be at work on it
	commit   verdict = "commit"
	rollBack verdict = "roll back"
	presume  verdict = "decide to abort" // and follow the journal
	blocked  verdict = "blocked"         // the journal does not answer
	tooOld   verdict = "too old"         // its decision may have been forgotten: for a person
	foreign  verdict = "foreign"         // not to be touched: for a person
)

// doubt is a branch in doubt, and what is known of it here.
type doubt struct {
	run     run
	branch  string
	age     time.Duration // since it was prepared, or seen here first
	life    time.Duration // since its run began
	running bool          // in this process
}

// limits are the options that a judgement needs.
type limits struct{ patience, retention time.Duration }

// judge says what is to be done with a branch in doubt by what the journal says;
// m is nil if the journal has no such transaction. It presumes an abort only of what
// is too young to have been forgotten. It is pure.
func (d doubt) judge(m *machine, l limits) verdict {
	switch {
	case d.running:
		return leave
	case m == nil && d.life >= l.retention:
		return tooOld
	case m == nil && d.age < l.patience:
		return leave
	case m == nil:
		return presume
	case m.of(d.run) == Abort:
		return rollBack
	case m.what.Actor == "" && !slices.Contains(m.what.Branches, d.branch): // a person may have missed it
		return foreign
	case m.halted != "": // a person has it go on
		return leave
	case d.age < l.patience: // who owns the shard is about to
		return leave
	}
	return commit
}

// answered is what the participants have said to a round of commits.
type answered struct {
	otherwise []journal.Entry // a heuristic record for each
	again     []string        // those that have to be called again
	errs      []error         // why, of each of them
}

// answers sorts what was said to the commits of these branches.
func answers(names []string, errs []error) answered {
	var a answered
	for i, name := range names {
		switch err := errs[i]; {
		case errors.Is(err, driver.ErrHeuristic):
			a.otherwise = append(a.otherwise, heuristic(name, err))
		case err != nil:
			a.again, a.errs = append(a.again, name), append(a.errs, err)
		}
	}
	return a
}

// heuristic is the record of a branch that was finished against the decision.
func heuristic(name string, err error) journal.Entry {
	return record(recordHeuristic, name, why{Text: said(err.Error())})
}

// follow is what is to be recorded after a round: the end if all is done, and nothing
// while some have to be called again. Who has done it is recorded only once a branch is
// heuristic, for the person who has to look. Each round tells the branches that the
// last one has left, so those that are neither recorded nor called again are done.
func (m *machine) follow(a answered) []journal.Entry {
	if len(a.otherwise) == 0 && m.state == Committing {
		if len(a.again) == 0 {
			return []journal.Entry{end()}
		}
		return nil
	}
	entries := a.otherwise
	for _, name := range m.left() {
		if !contains(a.again, entries, name) {
			entries = append(entries, journal.Entry{Kind: recordDone, Step: name})
		}
	}
	return entries
}

func contains(names []string, entries []journal.Entry, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	for _, e := range entries {
		if e.Step == name {
			return true
		}
	}
	return false
}

// complaint is what participants have said about heuristic branches.
func (m *machine) complaint() string {
	var all []string
	for _, p := range m.branches {
		if p.fate == otherwise {
			all = append(all, p.name+": "+p.err)
		}
	}
	return strings.Join(all, "; ")
}
