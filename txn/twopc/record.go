package twopc

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
// fits the journal and the participants: the id, or a hash of it. Its name at participants is the key
// with a sign of the run, so that a late rollback of one run does not affect branches of the next.
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

// checkID returns a Bug if the id is invalid.
func checkID(op, id string) error {
	return driver.CheckTransaction(op, id)
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
