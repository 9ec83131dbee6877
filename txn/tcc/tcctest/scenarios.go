package tcctest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

var errQuit = errors.New("tcctest: the caller gave up")

// forward returns scenarios that repeat the try and the confirmation of a branch. Those of one
// group show the same.
func (e *explorer) forward(b string) [][]scenario {
	try, confirm := callID{Name: b, Operation: branch.Try, N: 1}, callID{Name: b, Operation: branch.Confirm, N: 1}
	once := func(kind Kind, which callID, m fault, words string) scenario {
		return scenario{Words: fmt.Sprintf(words, b), Kind: kind, Name: b, FaultOf: rehearsal.Only(which, m)}
	}
	return [][]scenario{{
		once(TryNotIdempotent, try, rehearsal.Lost, "the answer of the try of %s was lost, and the try was repeated"),
		once(TryNotIdempotent, try, fault{Twice: true}, "the try of %s arrived twice"),
		once(TryNotIdempotent, confirm, fault{Late: true}, "%s was confirmed, and then its try arrived again"),
	}, {
		once(ConfirmNotIdempotent, confirm, rehearsal.Lost, "the answer of the confirmation of %s was lost, and the confirmation was repeated"),
		once(ConfirmNotIdempotent, confirm, fault{Twice: true}, "the confirmation of %s arrived twice"),
	}, {
		once(OutcomeDiffers, try, rehearsal.Gone, "the first try of %s was lost"),
		once(OutcomeDiffers, confirm, rehearsal.Gone, "the first confirmation of %s was lost"),
	}}
}

// An undoCase is a reason why a branch is cancelled.
type undoCase struct {
	words string
	try   fault // of its first try
}

var (
	laterRefused = undoCase{"%s was tried, and then %s", fault{}}
	answerLost   = undoCase{"%s was tried, its answer was lost permanently, and then %s", rehearsal.Lost}
	neverArrived = undoCase{"the try of %s was lost, its outcome was unknown, and then %s", rehearsal.Gone}
)

// backward returns scenarios that cancel a branch, and inject faults into its cancellation. If plain
// has a finding, the others would repeat it.
func (e *explorer) backward(b string) (plain scenario, others [][]scenario) {
	none := fault{}
	plain = e.cancelled(b, CancelIncomplete, laterRefused, "it was cancelled", none)
	return plain, [][]scenario{{
		e.cancelled(b, TryVisible, laterRefused, "it was cancelled", none),
	}, {
		e.cancelled(b, CancelNeedsHold, answerLost, "it was cancelled without its hold", none),
	}, {
		e.cancelled(b, EmptyCancel, neverArrived, "it was cancelled without its hold", none),
	}, {
		e.cancelled(b, CancelNotIdempotent, laterRefused, "the answer of its cancellation was lost, and the cancellation was repeated", rehearsal.Lost),
		e.cancelled(b, CancelNotIdempotent, laterRefused, "its cancellation arrived twice", fault{Twice: true}),
	}, {
		e.cancelled(b, CancelIncomplete, laterRefused, "its first cancellation was lost", rehearsal.Gone),
	}, {
		e.cancelled(b, LateTryAccepted, laterRefused, "it was cancelled, and then its try arrived again", fault{Late: true}),
		e.cancelled(b, LateTryAccepted, neverArrived, "it was cancelled, and then its try arrived for the first time", fault{Late: true}),
	}}
}

// cancelled returns a scenario in which only one branch is tried, and then cancelled: the others are
// refused, or if there are none its caller gives up.
func (e *explorer) cancelled(b string, kind Kind, how undoCase, words string, m fault) scenario {
	reason := "another branch was refused"
	if len(e.branches) == 1 {
		reason = "the caller gave up"
	}
	return scenario{Words: fmt.Sprintf(how.words, b, reason) + ", and " + words, Kind: kind, Name: b, Alone: true,
		FaultOf: func(d callID) fault {
			switch d {
			case callID{Name: b, Operation: branch.Try, N: 1}:
				first := how.try
				first.Quits = len(e.branches) == 1
				return first
			case callID{Name: b, Operation: branch.Cancel, N: 1}:
				return m
			}
			switch {
			case d.Operation == branch.Try && d.Name == b: // its outcome must stay unknown
				return rehearsal.Gone
			case d.Operation == branch.Try:
				no := rehearsal.Refused
				no.After = []string{b}
				return no
			}
			return fault{}
		}}
}

// refusals returns the scenarios in which a branch refuses after all others were tried, which are
// then cancelled together.
func (e *explorer) refusals() (scenarios []scenario) {
	for _, b := range e.branches {
		no := rehearsal.Refused
		no.After = slices.DeleteFunc(slices.Clone(e.branches), func(other string) bool { return other == b })
		scenarios = append(scenarios, scenario{Words: "the try of " + b + " was refused", Kind: CancelIncomplete, FaultOf: func(d callID) fault {
			if d.Name == b && d.Operation == branch.Try {
				return no
			}
			return fault{}
		}})
	}
	return scenarios
}

// concurrentRun returns a scenario in which another process runs the same before the confirmations.
func concurrentRun() scenario {
	return scenario{Words: "all branches were tried, and another process ran the same transaction before the confirmations", Kind: OutcomeDiffers,
		FaultOf: func(d callID) fault { return fault{Rival: d.Operation == branch.Confirm && d.N == 1} }}
}

// lateConfirm returns a scenario in which the holds expire before the confirmations arrive.
func lateConfirm() scenario {
	return scenario{Words: "the decision was to confirm, and the holds expired before the confirmations arrived", Kind: OutcomeDiffers, LateConfirm: true}
}
