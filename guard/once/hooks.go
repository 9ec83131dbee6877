package once

import (
	"errors"

	"github.com/interlock-dev/interlock/observe"
)

// report calls the hook for what was found of a message; h may be nil.
func report(h *observe.Once, consumer string, m Message, outcome Outcome, err error) {
	if outcome == Done {
		return
	}
	h = h.WithDefaults()
	about := observe.OnceMessage{Consumer: consumer, ID: m.ID, Key: m.Key, Epoch: m.Epoch, Seq: m.Seq}
	var gap *GapError
	switch {
	case outcome == Duplicate && h.Duplicate != nil:
		h.Duplicate(about)
	case outcome == Mismatched && h.Mismatched != nil:
		h.Mismatched(about)
	case outcome == Undone && errors.As(err, &gap) && h.Gap != nil:
		h.Gap(observe.OnceGap(*gap))
	}
}

func reportCleaned(h *observe.Once, e observe.OnceCleaned) {
	if h = h.WithDefaults(); h.Cleaned != nil {
		h.Cleaned(e)
	}
}
