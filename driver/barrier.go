package driver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A BarrierPhase is what a call of a branch asks for, whatever its protocol names it.
type BarrierPhase string

// The phases.
const (
	BarrierFirst   BarrierPhase = "first"   // do, try, prepare
	BarrierConfirm BarrierPhase = "confirm" // confirm, commit
	BarrierUndo    BarrierPhase = "undo"    // undo, cancel, rollback
)

// A BarrierCall is one call of a branch. Transaction, Branch and Step are its key.
type BarrierCall struct {
	Transaction string // 1 to MaxTransaction bytes
	Branch      string // 1 to 255 bytes
	Step        string // at most 255 bytes
	Phase       BarrierPhase
	Hash        []byte // SHA-256 of the input; may be empty but for BarrierFirst
	// Begun is when the transaction began, in whole milliseconds, as its caller knows it:
	// calls of one branch may differ, by no more than BarrierSpread.
	Begun time.Time
}

// Check finds what no store may be asked, which is a Bug.
func (c BarrierCall) Check() error {
	refuse := func(format string, args ...any) error {
		return &interlock.Error{Op: "pass barrier", Name: c.Transaction, Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
	}
	for _, n := range []struct {
		what, name  string
		least, most int
	}{{"transaction's id", c.Transaction, 1, MaxTransaction}, {"branch's name", c.Branch, 1, 255}, {"step's name", c.Step, 0, 255}} {
		if len(n.name) < n.least || len(n.name) > n.most {
			return refuse("%w: a %s has %d to %d bytes, not %d", interlock.ErrName, n.what, n.least, n.most, len(n.name))
		}
	}
	if _, known := barrierMoves[BarrierUnknown][c.Phase]; !known {
		return refuse("there is no phase %.40q", c.Phase)
	}
	if len(c.Hash) != sha256.Size && (len(c.Hash) > 0 || c.Phase == BarrierFirst) {
		return refuse("its hash has %d bytes, not %d", len(c.Hash), sha256.Size)
	}
	if c.Begun.UnixMilli() <= 0 {
		return refuse("it does not say when its transaction began")
	}
	return nil
}

// A BarrierState is where a branch is at its participant.
type BarrierState string

// The states.
const (
	BarrierUnknown   BarrierState = ""          // nothing has come
	BarrierStarted   BarrierState = "started"   // a first failed, and may have done a part
	BarrierDone      BarrierState = "done"      // a first was done
	BarrierRefused   BarrierState = "refused"   // the business has refused
	BarrierDoubted   BarrierState = "doubted"   // it has refused, after a first that failed
	BarrierConfirmed BarrierState = "confirmed" // and is not undone any more
	BarrierUndone    BarrierState = "undone"    // taken back, or kept from happening
)

// A BarrierOutcome is how a call is answered.
type BarrierOutcome string

// The outcomes.
const (
	// BarrierRun: the business is run now. It is what [BarrierState.Meet] says, and no
	// answer.
	BarrierRun BarrierOutcome = "run"
	// BarrierIsDone: it is so, now or from before, or there is nothing to take back.
	BarrierIsDone BarrierOutcome = "done"
	// BarrierSaysNo: the business has refused, now or before; Result says why.
	BarrierSaysNo BarrierOutcome = "no"
	// BarrierLate: a first that comes after the undo.
	BarrierLate BarrierOutcome = "late"
	// BarrierViolation: two have decided differently. State says what the branch is.
	BarrierViolation BarrierOutcome = "violation"
	// BarrierOther: a first before had another input.
	BarrierOther BarrierOutcome = "other"
	// BarrierForgotten: the transaction began below the low-water mark.
	BarrierForgotten BarrierOutcome = "forgotten"
)

// A BarrierMove is what a phase does to a branch: the outcome, and the state that
// follows if that is another. After [BarrierRun] it is what follows if the business
// does not refuse.
type BarrierMove struct {
	Outcome BarrierOutcome
	Next    BarrierState
}

// barrierMoves is the whole of a barrier.
var barrierMoves = map[BarrierState]map[BarrierPhase]BarrierMove{
	BarrierUnknown: {
		BarrierFirst:   {BarrierRun, BarrierDone},
		BarrierConfirm: {BarrierViolation, BarrierUnknown},
		BarrierUndo:    {BarrierIsDone, BarrierUndone},
	},
	BarrierStarted: {
		BarrierFirst:   {BarrierRun, BarrierDone},
		BarrierConfirm: {BarrierViolation, BarrierStarted},
		BarrierUndo:    {BarrierRun, BarrierUndone},
	},
	BarrierDone: {
		BarrierFirst:   {BarrierIsDone, BarrierDone},
		BarrierConfirm: {BarrierRun, BarrierConfirmed},
		BarrierUndo:    {BarrierRun, BarrierUndone},
	},
	BarrierRefused: {
		BarrierFirst:   {BarrierSaysNo, BarrierRefused},
		BarrierConfirm: {BarrierViolation, BarrierRefused},
		BarrierUndo:    {BarrierIsDone, BarrierRefused},
	},
	BarrierDoubted: {
		BarrierFirst:   {BarrierSaysNo, BarrierDoubted},
		BarrierConfirm: {BarrierViolation, BarrierDoubted},
		BarrierUndo:    {BarrierRun, BarrierUndone},
	},
	BarrierConfirmed: {
		BarrierFirst:   {BarrierIsDone, BarrierConfirmed},
		BarrierConfirm: {BarrierIsDone, BarrierConfirmed},
		BarrierUndo:    {BarrierViolation, BarrierConfirmed},
	},
	BarrierUndone: {
		BarrierFirst:   {BarrierLate, BarrierUndone},
		BarrierConfirm: {BarrierViolation, BarrierUndone},
		BarrierUndo:    {BarrierIsDone, BarrierUndone},
	},
}

// BarrierStates are all of them.
func BarrierStates() []BarrierState {
	return []BarrierState{BarrierUnknown, BarrierStarted, BarrierDone, BarrierRefused, BarrierDoubted, BarrierConfirmed, BarrierUndone}
}

// Meet tells what a phase does in a state. Every store uses it.
func (s BarrierState) Meet(p BarrierPhase) BarrierMove { return barrierMoves[s][p] }

// Refuse is the state after a first that was run in s, and that the business refused.
func (s BarrierState) Refuse() BarrierState {
	if s == BarrierStarted {
		return BarrierDoubted
	}
	return BarrierRefused
}

// A BarrierAnswer is what comes of a call.
type BarrierAnswer struct {
	Outcome BarrierOutcome
	State   BarrierState // of the branch now; empty if BarrierForgotten
	Result  []byte       // of the first, if Outcome is BarrierIsDone; why, if BarrierSaysNo
	Ran     bool         // the business was run by this call
}

// Barrier remembers which calls of a branch have come, in a store that keeps the
// business's data as well and runs the business by itself. B is what it runs: a
// script, say. It is given the result of the first, unless nothing is known of it.
//
// A business refuses in a way that the store tells of, and must not have changed
// anything by then. Only a first may refuse. If a business fails, the call's error is
// Uncertain: what it did before stays, for there is no rollback. A first that failed
// is remembered as such, so that its undo is run; whatever failed is run again when it
// is called again. So a business looks at everything before it changes anything.
type Barrier[B any] interface {
	// Call answers c, and runs business if [BarrierState.Meet] says so. What it reads,
	// what the business does and what it remembers is one atomic step. Repeating it
	// after an Uncertain answer converges, unless it was the business that failed.
	Call(ctx context.Context, c BarrierCall, business B) (BarrierAnswer, error)
	// Forget raises the low-water mark, and then removes the branches whose first call
	// told a begin more than BarrierSpread before it, at most limit (1 to MaxForget), and
	// returns how many: fewer than limit are all. Branches of the transactions in except,
	// at most MaxExcept, stay, and their calls are let in. From then on calls of others
	// that tell a begin before the mark are BarrierForgotten. So each unfinished transaction
	// that has a call which does, or lies less than a margin above it, must be among them,
	// at this mark and at every later one until it has ended; the margin covers how far
	// begins may lie apart. A mark never falls, and one that is not above the one in force
	// changes nothing, the exceptions neither. A mark that lies more than
	// interlock.MaxAhead beyond the store's clock is refused (Definite): it would refuse
	// everything. Nothing is forgotten otherwise.
	Forget(ctx context.Context, mark time.Time, except []string, limit int) (removed int, err error)
}

// BarrierSpread is how far apart the Begun of a transaction's calls may lie. What is
// remembered is kept for so long below the mark: else a late call that tells a later
// begin than the branch was made with, with the mark between the two, would neither be
// below the mark nor find its branch.
const BarrierSpread = time.Hour

// MaxForget is how many branches one call of Forget can remove.
const MaxForget = 10_000

// MaxExcept is how many transactions a mark can except.
const MaxExcept = 1000

// CheckBarrierForget says what is wrong with a call of Forget whatever the clock is,
// which is a Bug.
func CheckBarrierForget(mark time.Time, except []string, limit int) error {
	if mark.UnixMilli() > 0 && limit >= 1 && limit <= MaxForget && len(except) <= MaxExcept {
		return nil
	}
	return &interlock.Error{Op: "forget branches", Kind: interlock.Bug,
		Err: fmt.Errorf("a mark of %v, a limit of %d and %d exceptions: the mark must be after 1970, the limit 1 to %d, with at most %d exceptions",
			mark, limit, len(except), MaxForget, MaxExcept)}
}
