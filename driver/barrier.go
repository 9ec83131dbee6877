package driver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A BarrierPhase is the phase of a branch that a call requests. Protocols have their own names
// for the phases.
type BarrierPhase string

// The phases, and what the protocols call them.
const (
	BarrierFirst   BarrierPhase = "first"   // do, try, prepare
	BarrierConfirm BarrierPhase = "confirm" // confirm, commit
	BarrierUndo    BarrierPhase = "undo"    // undo, cancel, rollback
)

// A BarrierCall is one call of a branch. Transaction, Branch and Step together are its key.
type BarrierCall struct {
	Transaction string // 1 to MaxTransaction bytes
	Branch      string // 1 to 255 bytes
	Step        string // at most 255 bytes
	Phase       BarrierPhase
	Hash        []byte // SHA-256 of the input; required for BarrierFirst, otherwise it may be empty
	// Begun is when the transaction began, in whole milliseconds, according to the caller. The
	// values of one branch's calls may differ by at most BarrierSpread.
	Begun time.Time
}

// Check returns a Bug if a field is empty, too long, unknown or out of range.
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

// A BarrierState is the state of a branch at its participant.
type BarrierState string

// The states.
const (
	BarrierUnknown   BarrierState = ""          // no call has arrived
	BarrierStarted   BarrierState = "started"   // a first call failed, and may have had part of its effect
	BarrierDone      BarrierState = "done"      // a first call succeeded
	BarrierRefused   BarrierState = "refused"   // the business logic refused a first call
	BarrierDoubted   BarrierState = "doubted"   // the business logic refused a first call, after another one had failed; or its result was too long
	BarrierConfirmed BarrierState = "confirmed" // confirmed; it cannot be undone
	BarrierUndone    BarrierState = "undone"    // undone, or cancelled before any effect
)

// A BarrierOutcome is the outcome of a call.
type BarrierOutcome string

// The outcomes.
const (
	// BarrierRun means that the business logic must run now. Only [BarrierState.Meet] returns
	// it; it is never the answer to a call.
	BarrierRun BarrierOutcome = "run"
	// BarrierIsDone means that the phase is complete, by this call or an earlier one, or that
	// there is nothing to undo.
	BarrierIsDone BarrierOutcome = "done"
	// BarrierSaysNo means that the business logic refused this call or an earlier one. Result
	// has the reason.
	BarrierSaysNo BarrierOutcome = "no"
	// BarrierLate means that a first call arrived after the undo.
	BarrierLate BarrierOutcome = "late"
	// BarrierViolation means that the call contradicts an earlier decision. State is the state
	// of the branch.
	BarrierViolation BarrierOutcome = "violation"
	// BarrierOther means that an earlier first call had another input.
	BarrierOther BarrierOutcome = "other"
	// BarrierForgotten means that the transaction began below the low-water mark.
	BarrierForgotten BarrierOutcome = "forgotten"
)

// A BarrierMove is the effect of a phase on a branch: the outcome and the next state. After
// [BarrierRun], Next applies if the business logic does not refuse.
type BarrierMove struct {
	Outcome BarrierOutcome
	Next    BarrierState
}

// barrierMoves is the complete transition table of a barrier.
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

// BarrierStates returns all states.
func BarrierStates() []BarrierState {
	return []BarrierState{BarrierUnknown, BarrierStarted, BarrierDone, BarrierRefused, BarrierDoubted, BarrierConfirmed, BarrierUndone}
}

// Meet returns the effect of a phase in state s. Every store uses it.
func (s BarrierState) Meet(p BarrierPhase) BarrierMove { return barrierMoves[s][p] }

// Refuse returns the state that follows if a first call runs in state s and the business logic
// refuses it.
func (s BarrierState) Refuse() BarrierState {
	if s == BarrierStarted {
		return BarrierDoubted
	}
	return BarrierRefused
}

// MaxBarrierResult is the maximum length of a result, in bytes.
const MaxBarrierResult = 1 << 20

// A BarrierAnswer is the result of a call.
type BarrierAnswer struct {
	Outcome BarrierOutcome
	State   BarrierState // of the branch now; empty if BarrierForgotten
	Result  []byte       // of the first call if Outcome is BarrierIsDone; the reason if BarrierSaysNo
	Ran     bool         // this call ran the business logic
}

// Barrier records which calls of a branch have arrived. It is for a store that also keeps the
// business data and runs the business logic itself. B is the business logic that the store
// runs, for example a script. The business logic receives the result of the first call, if that
// is known.
//
// The business logic refuses a call by means that the store defines, before it changes
// anything. It may refuse only a first call. If the business logic fails, the error of Call is
// Uncertain: there is no rollback, so earlier changes of that run stay. A failed first call is
// recorded, so that its undo runs the business logic. If a call failed, repeating it runs the
// business logic again. Business logic must therefore check everything before it changes
// anything.
//
// A first call with a result above [MaxBarrierResult] has failed too, but does not run again: the
// branch becomes [BarrierDoubted], which refuses repeated calls with the reason.
type Barrier[B any] interface {
	// Call answers c, and runs business if [BarrierState.Meet] returns BarrierRun. Reading the
	// state, running business and recording the result are one atomic step. Repeating the call
	// after an Uncertain error converges, unless the business logic itself failed.
	Call(ctx context.Context, c BarrierCall, business B) (BarrierAnswer, error)
	// Forget raises the low-water mark, and then removes branches that lie more than
	// BarrierSpread below it; the Begun of a branch's first call counts. It removes at most
	// limit branches (1 to MaxForget) and returns how many. If it returns fewer than limit, no
	// more are left. Nothing else removes a branch.
	//
	// Branches of the transactions in except (at most MaxExcept) stay, and their calls are
	// accepted. From then on, other calls whose Begun is before the mark are BarrierForgotten.
	// The list except must have each unfinished transaction with a call whose Begun is below
	// the mark plus a margin. The margin covers the difference between the Begun of its calls.
	// List the transaction at every later mark too, until it has ended.
	//
	// The mark never falls: a mark that is not above the current one changes neither the mark
	// nor the exceptions. A mark more than interlock.MaxAhead ahead of the store's clock would
	// exclude all calls; it is refused as Definite.
	Forget(ctx context.Context, mark time.Time, except []string, limit int) (removed int, err error)
}

// BarrierSpread is the largest allowed difference between the Begun of a transaction's calls.
// Branches are kept until they lie this far below the mark. Otherwise a late call whose Begun
// is above the mark would not find the branch of a call whose Begun was below it.
const BarrierSpread = time.Hour

// MaxForget is the largest limit of [Barrier].Forget.
const MaxForget = 10_000

// MaxExcept is the largest number of exceptions to a mark.
const MaxExcept = 1000

// CheckBarrierForget returns a Bug if the arguments of Forget are out of range. It does not
// compare the mark with a clock.
func CheckBarrierForget(mark time.Time, except []string, limit int) error {
	if mark.UnixMilli() > 0 && limit >= 1 && limit <= MaxForget && len(except) <= MaxExcept {
		return nil
	}
	return &interlock.Error{Op: "forget branches", Kind: interlock.Bug,
		Err: fmt.Errorf("a mark of %v, a limit of %d and %d exceptions: the mark must be after 1970, the limit 1 to %d, with at most %d exceptions",
			mark, limit, len(except), MaxForget, MaxExcept)}
}
