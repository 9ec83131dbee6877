package tcctest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
)

var (
	errLost    = errors.New("tcctest: the answer is lost")
	errGone    = errors.New("tcctest: nobody answers")
	errRefused = errors.New("tcctest: it is refused")
	errQuit    = errors.New("tcctest: its caller has given up")
)

// What befalls calls.
var (
	refused = mishap{absent: true, answer: branch.Fail(errRefused)}
	lost    = mishap{answer: branch.Unknown(errLost)}
	gone    = mishap{absent: true, answer: branch.Unknown(errGone)}
)

// only is a fate that befalls one call.
func only(which deed, m mishap) func(*run, deed) mishap {
	return func(_ *run, d deed) mishap {
		if d == which {
			return m
		}
		return mishap{}
	}
}

// forward repeats the try and the confirmation of a branch: plots that show the same
// together.
func (e *explorer) forward(b string) [][]plot {
	try, confirm := deed{b, branch.Try, 1}, deed{b, branch.Confirm, 1}
	once := func(kind Kind, which deed, m mishap, words string) plot {
		return plot{words: fmt.Sprintf(words, b), kind: kind, branch: b, fate: only(which, m)}
	}
	return [][]plot{{
		once(TryNotIdempotent, try, lost, "the answer of the try of %s was lost, and it was tried again"),
		once(TryNotIdempotent, try, mishap{twice: true}, "the try of %s arrived twice"),
		once(TryNotIdempotent, confirm, mishap{late: true}, "%s was confirmed, and then its try arrived once more"),
	}, {
		once(ConfirmNotIdempotent, confirm, lost, "the answer of the confirmation of %s was lost, and it was called again"),
		once(ConfirmNotIdempotent, confirm, mishap{twice: true}, "the confirmation of %s arrived twice"),
	}, {
		once(OutcomeDiffers, try, gone, "the try of %s arrived only when it was called again"),
		once(OutcomeDiffers, confirm, gone, "the confirmation of %s arrived only when it was called again"),
	}}
}

// A retreat is how a branch comes to be cancelled.
type retreat struct {
	words string
	try   mishap // what goes wrong with its first try
}

var (
	fromHold  = retreat{"%s was tried, and then %s", mishap{}}
	fromDoubt = retreat{"%s was tried and the answer lost for good, and then %s", lost}
	fromAfar  = retreat{"the try of %s did not arrive, which nobody knew, and then %s", gone}
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
		e.cancelled(b, CancelNotIdempotent, fromHold, "the answer of its cancellation was lost, and that was called again", lost),
		e.cancelled(b, CancelNotIdempotent, fromHold, "its cancellation arrived twice", mishap{twice: true}),
	}, {
		e.cancelled(b, CancelIncomplete, fromHold, "its cancellation arrived only when it was called again", gone),
	}, {
		e.cancelled(b, LateTryAccepted, fromHold, "it was cancelled, and then its try arrived once more", mishap{late: true}),
		e.cancelled(b, LateTryAccepted, fromAfar, "it was cancelled, and only then its try arrived", mishap{late: true}),
	}}
}

// cancelled is a plot in which a branch is cancelled, the only one that is tried: the
// others are refused then, or if there are none its Run is given up.
func (e *explorer) cancelled(b string, kind Kind, how retreat, words string, m mishap) plot {
	reason := "another branch was refused"
	if len(e.branches) == 1 {
		reason = "its caller gave up"
	}
	return plot{words: fmt.Sprintf(how.words, b, reason) + ", and " + words, kind: kind, branch: b, alone: true,
		fate: func(_ *run, d deed) mishap {
			switch d {
			case deed{b, branch.Try, 1}:
				first := how.try
				first.quits = len(e.branches) == 1
				return first
			case deed{b, branch.Cancel, 1}:
				return m
			}
			switch {
			case d.operation == branch.Try && d.branch == b: // it may not come to be known
				return gone
			case d.operation == branch.Try:
				no := refused
				no.after = []string{b}
				return no
			}
			return mishap{}
		}}
}

// refusals are the plots in which a branch refuses once all others are tried, which are
// cancelled together.
func (e *explorer) refusals() (plots []plot) {
	for _, b := range e.branches {
		no := refused
		no.after = slices.DeleteFunc(slices.Clone(e.branches), func(other string) bool { return other == b })
		plots = append(plots, plot{words: "the try of " + b + " was refused", kind: CancelIncomplete, fate: func(_ *run, d deed) mishap {
			if d.branch == b && d.operation == branch.Try {
				return no
			}
			return mishap{}
		}})
	}
	return plots
}

// rivalry is somebody else who wants the same when all is held.
func rivalry() plot {
	return plot{words: "all was tried, and before it was confirmed somebody else ran the same", kind: OutcomeDiffers,
		fate: func(_ *run, d deed) mishap { return mishap{rival: d.operation == branch.Confirm && d.n == 1} }}
}

// tardiness is confirmations that do not arrive before the time of the holds is over.
func tardiness() plot {
	return plot{words: "it was decided to confirm, and the time of the holds was over before the confirmations arrived", kind: OutcomeDiffers, tardy: true,
		fate: func(r *run, d deed) mishap {
			r.mu.Lock()
			defer r.mu.Unlock()
			if d.operation == branch.Confirm && !r.swept {
				return gone
			}
			return mishap{}
		}}
}
