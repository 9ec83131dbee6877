package tcctest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

var errQuit = errors.New("tcctest: its caller has given up")

// forward repeats the try and the confirmation of a branch: plots that show the same
// together.
func (e *explorer) forward(b string) [][]plot {
	try, confirm := deed{Name: b, Operation: branch.Try, N: 1}, deed{Name: b, Operation: branch.Confirm, N: 1}
	once := func(kind Kind, which deed, m mishap, words string) plot {
		return plot{Words: fmt.Sprintf(words, b), Kind: kind, Name: b, Fate: rehearsal.Only(which, m)}
	}
	return [][]plot{{
		once(TryNotIdempotent, try, rehearsal.Lost, "the answer of the try of %s was lost, and it was tried again"),
		once(TryNotIdempotent, try, mishap{Twice: true}, "the try of %s arrived twice"),
		once(TryNotIdempotent, confirm, mishap{Late: true}, "%s was confirmed, and then its try arrived once more"),
	}, {
		once(ConfirmNotIdempotent, confirm, rehearsal.Lost, "the answer of the confirmation of %s was lost, and it was called again"),
		once(ConfirmNotIdempotent, confirm, mishap{Twice: true}, "the confirmation of %s arrived twice"),
	}, {
		once(OutcomeDiffers, try, rehearsal.Gone, "the try of %s arrived only when it was called again"),
		once(OutcomeDiffers, confirm, rehearsal.Gone, "the confirmation of %s arrived only when it was called again"),
	}}
}

// A retreat is how a branch is cancelled.
type retreat struct {
	words string
	try   mishap // what goes wrong with its first try
}

var (
	fromHold  = retreat{"%s was tried, and then %s", mishap{}}
	fromDoubt = retreat{"%s was tried and the answer lost for good, and then %s", rehearsal.Lost}
	fromAfar  = retreat{"the try of %s did not arrive, which nobody knew, and then %s", rehearsal.Gone}
)

// backward has a branch cancelled, and lets things befall its cancellation: the first
// plot is the plainest, and where it shows something the others would show it again.
func (e *explorer) backward(b string) (plain plot, others [][]plot) {
	none := mishap{}
	plain = e.cancelled(b, CancelIncomplete, fromHold, "it was cancelled", none)
	return plain, [][]plot{{
		e.cancelled(b, TryVisible, fromHold, "it was cancelled", none),
	}, {
		e.cancelled(b, CancelNeedsHold, fromDoubt, "it was cancelled without its hold", none),
	}, {
		e.cancelled(b, EmptyCancel, fromAfar, "it was cancelled without its hold", none),
	}, {
		e.cancelled(b, CancelNotIdempotent, fromHold, "the answer of its cancellation was lost, and that was called again", rehearsal.Lost),
		e.cancelled(b, CancelNotIdempotent, fromHold, "its cancellation arrived twice", mishap{Twice: true}),
	}, {
		e.cancelled(b, CancelIncomplete, fromHold, "its cancellation arrived only when it was called again", rehearsal.Gone),
	}, {
		e.cancelled(b, LateTryAccepted, fromHold, "it was cancelled, and then its try arrived once more", mishap{Late: true}),
		e.cancelled(b, LateTryAccepted, fromAfar, "it was cancelled, and only then its try arrived", mishap{Late: true}),
	}}
}

// cancelled is a plot in which a branch is cancelled, the only one that is tried: the
// others are refused then, or if there are none its Run is given up.
func (e *explorer) cancelled(b string, kind Kind, how retreat, words string, m mishap) plot {
	reason := "another branch was refused"
	if len(e.branches) == 1 {
		reason = "its caller gave up"
	}
	return plot{Words: fmt.Sprintf(how.words, b, reason) + ", and " + words, Kind: kind, Name: b, Alone: true,
		Fate: func(d deed) mishap {
			switch d {
			case deed{Name: b, Operation: branch.Try, N: 1}:
				first := how.try
				first.Quits = len(e.branches) == 1
				return first
			case deed{Name: b, Operation: branch.Cancel, N: 1}:
				return m
			}
			switch {
			case d.Operation == branch.Try && d.Name == b: // it may not come to be known
				return rehearsal.Gone
			case d.Operation == branch.Try:
				no := rehearsal.Refused
				no.After = []string{b}
				return no
			}
			return mishap{}
		}}
}

// refusals are the plots in which a branch refuses once all others are tried, which are
// cancelled together.
func (e *explorer) refusals() (plots []plot) {
	for _, b := range e.branches {
		no := rehearsal.Refused
		no.After = slices.DeleteFunc(slices.Clone(e.branches), func(other string) bool { return other == b })
		plots = append(plots, plot{Words: "the try of " + b + " was refused", Kind: CancelIncomplete, Fate: func(d deed) mishap {
			if d.Name == b && d.Operation == branch.Try {
				return no
			}
			return mishap{}
		}})
	}
	return plots
}

// rivalry is somebody else who wants the same when all is held.
func rivalry() plot {
	return plot{Words: "all was tried, and before it was confirmed somebody else ran the same", Kind: OutcomeDiffers,
		Fate: func(d deed) mishap { return mishap{Rival: d.Operation == branch.Confirm && d.N == 1} }}
}

// tardiness is confirmations that do not arrive before the time of the holds is over.
func tardiness() plot {
	return plot{Words: "it was decided to confirm, and the time of the holds was over before the confirmations arrived", Kind: OutcomeDiffers, Tardy: true}
}
