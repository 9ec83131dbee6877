package observe

import "log/slog"

// Limit receives the events of rate limits. Every hook may be nil. Hooks must return at once and
// must not call the limits that report.
type Limit struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Refused func(LimitRefused) // not logged by default
	Failed  func(LimitFailed)
}

// LimitRefused reports that a call was refused.
type LimitRefused struct {
	Key    string // of the limit that refused it
	Shadow bool   // the call was admitted all the same
}

// LimitFailed reports that the store gave no decision.
type LimitFailed struct {
	Key      string
	Admitted bool // by the failure policy
	Err      error
}

// WithDefaults returns h with a hook that logs failures.
func (h *Limit) WithDefaults() *Limit {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, always[LimitFailed]("no decision about a rate limit"))
	return r
}
