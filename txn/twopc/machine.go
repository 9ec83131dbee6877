package twopc

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// State is the state of a transaction in the journal; see [coordinator.State]. An undecided
// transaction is not in the journal.
type State = coordinator.State

// The states. COMMITTING becomes COMMITTED when the last participant has committed, or
// HEURISTIC.
const (
	Committing State = "COMMITTING"         // decided; remaining branches are committed, without a bound
	Committed  State = "COMMITTED"          // by all participants
	Aborted    State = "ABORTED"            // prepared branches are rolled back
	Heuristic  State = "HEURISTIC"          // a branch was finished against the decision: an operator must act
	Resolved         = coordinator.Resolved // an operator has resolved a heuristic outcome
)

// States are all states of a decided transaction.
var States = []State{Committing, Heuristic, Committed, Aborted, Resolved}

// fate is the state of a branch that is to be committed.
type fate int

const (
	open fate = iota
	done
	againstDecision // against the decision
)

// progress is a branch that is to be committed.
type progress struct {
	name     string
	fate     fate
	err      string
	attempts int // failed ones in the journal
}

// machine is the state that a transaction's records lead to. It is pure: with returns the state after
// more records, or an error if they are invalid.
type machine struct {
	state    State // empty before the decision
	decision Decision
	data     decideData
	branches []progress
	resolved By
	ended    bool

	takeOvers int    // in a row, without an answer in between
	halted    string // why no participant is called; empty while it is not halted
}

// replay returns the state after all records of a transaction.
func replay(entries []journal.Entry) (machine, error) { return machine{}.with(entries...) }

// with returns the state after more records. m does not change.
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
		return m.recordFailure(e)
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
		var w reasonData
		err := json.Unmarshal(e.Data, &w)
		m.state, m.resolved = Resolved, By{Actor: w.Actor, Reason: cmp.Or(w.Reason, w.Text)}
		return err
	case recordEnd:
		return m.end()
	}
	return coordinator.ErrRecord
}

func (m *machine) decide(e journal.Entry) error {
	if err := json.Unmarshal(e.Data, &m.data); err != nil {
		return err
	}
	switch m.decision = Decision(e.Step); m.decision {
	case Abort:
		m.state = Aborted
	case Commit:
		if len(m.data.Branches) == 0 {
			return fmt.Errorf("a commit needs at least one branch")
		}
		m.state = Committing
		for _, name := range m.data.Branches {
			m.branches = append(m.branches, progress{name: name})
		}
	default:
		return errOrder
	}
	return nil
}

// answer applies the result of a commit, or a rollback that was impossible. The branches of an abort
// are not known before.
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
	var w reasonData
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	m.branches[i].fate, m.branches[i].err = againstDecision, w.Text
	m.state = Heuristic
	return nil
}

// end applies the end. The end of a commit says that all branches were committed.
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

// left returns the branches that are still to be committed.
func (m *machine) left() []string { return m.withFate(open) }

// settled reports whether only an operator can act.
func (m *machine) settled() bool { return m.state == Heuristic && len(m.left()) == 0 }

// withFate returns the branches of a fate.
func (m *machine) withFate(f fate) []string {
	var names []string
	for _, p := range m.branches {
		if p.fate == f {
			names = append(names, p.name)
		}
	}
	return names
}

// decisionFor returns the decision for a run: every run but the recorded one is aborted.
func (m *machine) decisionFor(r run) Decision {
	if m.data.Run == r.sign {
		return m.decision
	}
	return Abort
}

// ballot is a participant's answer to prepare.
type ballot struct {
	name string
	vote driver.Vote
	err  error
}

// voteResult is the result of the first phase.
type voteResult struct {
	abortReason error    // nil to commit
	yes         []string // voted so
	unclear     []string // gave no clear answer, and may be prepared
}

// countVotes decides the first phase. Any answer but a clear yes or read-only is a no.
func countVotes(ballots []ballot) voteResult {
	var t voteResult
	var against []error
	for _, b := range ballots {
		switch {
		case b.err != nil:
			against = append(against, fmt.Errorf("%s voted no: %w", b.name, b.err))
			if interlock.Kind(b.err) == interlock.Uncertain {
				t.unclear = append(t.unclear, b.name)
			}
		case b.vote == driver.VoteYes:
			t.yes = append(t.yes, b.name)
		case b.vote != driver.VoteReadOnly:
			against = append(against, fmt.Errorf("%s voted no", b.name))
		}
	}
	t.abortReason = errors.Join(against...)
	return t
}

// verdict says what to do with a branch in doubt.
type verdict string

const (
	leave    verdict = "leave" // a run may be using it
	commit   verdict = "commit"
	rollBack verdict = "roll back"
	presume  verdict = "decide to abort" // and follow the journal
	blocked  verdict = "blocked"         // the journal does not answer
	tooOld   verdict = "too old"         // its decision may have been deleted: for an operator
	foreign  verdict = "foreign"         // not a branch of this package: for an operator
)

// inDoubtBranch is a branch in doubt and what this process knows of it.
type inDoubtBranch struct {
	run     run
	branch  string
	age     time.Duration // since it was prepared, or seen here first
	runAge  time.Duration // since its run began
	running bool          // in this process
}

// judge returns what to do with a branch in doubt. m is nil if the journal has no such transaction. An
// abort is presumed only if the decision cannot have been deleted. It is pure.
func (d inDoubtBranch) judge(m *machine, o Options) verdict {
	switch {
	case d.running:
		return leave
	case m == nil && d.runAge >= o.Retention:
		return tooOld
	case m == nil && d.age < o.Patience:
		return leave
	case m == nil:
		return presume
	case m.decisionFor(d.run) == Abort:
		return rollBack
	case m.data.Actor == "" && !slices.Contains(m.data.Branches, d.branch): // an operator's decision may not list it
		return foreign
	case m.halted != "": // an operator resumes it
		return leave
	case d.age < o.Patience: // the owner of the shard commits it
		return leave
	}
	return commit
}

// commitResults are the results of one round of commits.
type commitResults struct {
	heuristics []journal.Entry // one record for each
	failed     []string        // to be called again
	errs       []error         // of failed
}

// asked returns the shortest delay that the failed participants ask for, up to the longest pause. It is 0 if
// one of them asks for none, because a round calls all.
func (a commitResults) asked() time.Duration {
	least := pause.Max
	for _, err := range a.errs {
		_, after := branch.ClassOf(err)
		least = min(least, after)
	}
	return least
}

// sortResults sorts the results of the commits of these branches.
func sortResults(names []string, errs []error) commitResults {
	var a commitResults
	for i, name := range names {
		switch err := errs[i]; {
		case errors.Is(err, driver.ErrHeuristic):
			a.heuristics = append(a.heuristics, heuristic(name, err))
		case err != nil:
			a.failed, a.errs = append(a.failed, name), append(a.errs, err)
		}
	}
	return a
}

// heuristic returns the record of a branch that was finished against the decision.
func heuristic(name string, err error) journal.Entry {
	return record(recordHeuristic, name, reasonData{Text: truncated(err.Error())})
}

// recordsAfter returns the records that follow a round: the end if all branches are committed, none
// while some are to be called again. Committed branches are recorded only once one is heuristic, for
// the operator. Each round calls all branches that are left, so those in neither list are done.
func (m *machine) recordsAfter(a commitResults) []journal.Entry {
	if len(a.heuristics) == 0 && m.state == Committing {
		if len(a.failed) == 0 {
			return []journal.Entry{end()}
		}
		return nil
	}
	entries := a.heuristics
	for _, name := range m.left() {
		isHeuristic := slices.ContainsFunc(a.heuristics, func(e journal.Entry) bool { return e.Step == name })
		if !isHeuristic && !slices.Contains(a.failed, name) {
			entries = append(entries, journal.Entry{Kind: recordDone, Step: name})
		}
	}
	return entries
}

// heuristicErrors returns the errors of heuristic branches.
func (m *machine) heuristicErrors() string {
	var all []string
	for _, p := range m.branches {
		if p.fate == againstDecision {
			all = append(all, p.name+": "+p.err)
		}
	}
	return strings.Join(all, "; ")
}

// Kinds of records. An append is atomic.
const (
	recordDecide    = "decide"    // Step is commit or abort; the first record, and the only one of its kind
	recordDone      = "done"      // a branch was committed; written only where another one is heuristic
	recordHeuristic = "heuristic" // a branch was finished against the decision
	recordFailing   = "failing"   // the number of failed commits of a branch, which are repeated
	recordTaken     = "taken"     // it was taken over during calls
	recordHalted    = "halted"    // it was taken over too often: an operator must act
	recordRetry     = "retry"     // by an operator: it is resumed
	recordRemind    = "remind"    // a heuristic outcome was reported again
	recordResolved  = "resolved"  // by an operator: it is resolved
	recordEnd       = coordinator.RecordEnd
)

// Decision is the decided outcome of a transaction.
type Decision = coordinator.Decision

// The decisions.
const (
	Commit Decision = "commit"
	Abort  Decision = "abort"
)

// decideData is the data of a decide record.
type decideData struct {
	ID       string   `json:"id,omitempty"` // the user's; empty if unknown to the process that decided
	Run      string   `json:"run"`          // the run that is decided; all others are rolled back
	Branches []string `json:"branches,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Actor    string   `json:"actor,omitempty"` // the operator who decided; empty if an engine did
}

// reasonData is the data of heuristic, failing, halted, retry and resolved records. Records of operators from
// versions before [By] have the reason in Text.
type reasonData struct {
	Actor    string `json:"actor,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Text     string `json:"text,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

// records reads and changes transactions in a journal.
var records = coordinator.Records[machine, Outcome]{Protocol: protocol, With: machine.with,
	State:   func(m machine) State { return m.state },
	Outcome: func(t coordinator.Transaction[machine]) Outcome { return t.State.outcome(t.Head, t.Entries) }}

func record(kind, step string, data any) journal.Entry { return coordinator.Record(kind, step, data) }

func decide(d Decision, data decideData) journal.Entry { return record(recordDecide, string(d), data) }

func end() journal.Entry { return journal.Entry{Kind: recordEnd} }

func truncated(text string) string { return coordinator.Truncate(text, coordinator.MaxReason) }

// A transaction has three names. Its id is the user's, of up to driver.MaxTransaction bytes. Its key
// fits the journal and the participants: the id, or a hash of it. Its name at participants is
// the key with a sign of the run. So a late rollback of one run does not affect branches of the
// next.
const (
	runLength  = 12 // 60 bits: when the run began, and 28 bits of chance
	longestKey = driver.MaxXIDTransaction - 1 - runLength
	runBits    = 28
	runBase    = 32
)

// Key returns the name of an id in the journal: the id itself if it is short and plain, else a
// tilde and a hash of 156 bits. Functions that take an id take its key as well.
func Key(id string) string {
	if plain(id) && (len(id) == longestKey || len(id) < longestKey && !strings.HasPrefix(id, "~")) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "~" + base64.RawURLEncoding.EncodeToString(sum[:])[:longestKey-1]
}

// plain reports whether participants can hold the text.
func plain(text string) bool {
	return driver.XID{Transaction: text, Branch: "x"}.Check() == nil
}

// run is one attempt at a transaction.
type run struct {
	key   string
	sign  string    // distinguishes the runs of the key
	began time.Time // in whole seconds, by the clock of the process that runs it
}

// begin returns a run that begins now.
func begin(id string, now time.Time, chance uint32) run {
	n := uint64(now.Unix())<<runBits | uint64(chance)&(1<<runBits-1)
	sign := strconv.FormatUint(n, runBase)
	return run{Key(id), strings.Repeat("0", max(0, runLength-len(sign))) + sign, now.Truncate(time.Second)}
}

// String returns the name at participants.
func (r run) String() string { return r.key + "." + r.sign }

// xid returns the XID of a branch of the run.
func (r run) xid(participant string) driver.XID {
	return driver.XID{Transaction: r.String(), Branch: participant}
}

// parse returns the run of a name at participants. It fails if no engine of this package can have
// created the name.
func parse(name string) (run, error) {
	dot := len(name) - runLength - 1
	if dot < 1 || dot > longestKey || name[dot] != '.' || !plain(name) {
		return run{}, fmt.Errorf("%q is not a branch name of this package", name)
	}
	n, err := strconv.ParseUint(name[dot+1:], runBase, 64)
	if err != nil || strings.ToLower(name[dot+1:]) != name[dot+1:] {
		return run{}, fmt.Errorf("%q is not a branch name of this package", name)
	}
	return run{name[:dot], name[dot+1:], time.Unix(int64(n>>runBits), 0)}, nil
}
