package sequence

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Options of a sequencer; nil and the zero value work.
type Options struct {
	// Wait is how long a key waits for missing events after the gap was noticed; 0 means 5 s.
	Wait time.Duration
	// Fetch asks the source for missing events when the wait has ended. It returns those of the
	// hole that the source has, in any order. It is called for at most Buffer events, and again
	// as long as it returns some. After an empty result the whole hole is passed over, including
	// events that were not requested. nil means that there is no source.
	Fetch func(ctx context.Context, missing Hole) ([]Event, error)
	// FetchWait bounds one Fetch; 0 means 5 s. A later result is offered like other events.
	FetchWait time.Duration
	// Halt stops a key whose missing events did not arrive by Wait and Fetch, until they arrive or
	// Resume is called. If it is false, the hole is recorded and the key continues.
	Halt bool

	// Buffer bounds the held events of one key; 0 means 64.
	Buffer int
	// Bytes bounds the held payloads and keys in total; 0 means 64 MiB. Fetched events may exceed it,
	// by Buffer events for each running Fetch.
	Bytes int64
	// Gaps bounds the keys that hold events; 0 means 10,000.
	Gaps int
	// Cached is the number of idle keys whose positions are cached; 0 means 10,000, negative means
	// none.
	Cached int

	// Timeout bounds the work on a key without a caller: one step of the store, including the
	// handler; 0 means 30 s.
	Timeout time.Duration
	// Concurrency bounds the keys that are worked on at the same time without a caller, and the
	// running fetches; 0 means 8.
	Concurrency int
	// Settled receives the outcome of each Held event: once, unless the sequencer is closed before, or a
	// Source has released it.
	// It must return at once and must not call the sequencer. It may be nil.
	Settled func(Event, Outcome)
	// Observe receives events; nil logs failures, see package observe.
	Observe *observe.Sequence
}

// withDefaults fills in the defaults and rejects negative values.
func (o *Options) withDefaults() (Options, error) {
	var full Options
	if o != nil {
		full = *o
	}
	full.Wait, full.FetchWait, full.Timeout = cmp.Or(full.Wait, 5*time.Second), cmp.Or(full.FetchWait, 5*time.Second), cmp.Or(full.Timeout, 30*time.Second)
	full.Buffer, full.Bytes, full.Gaps = cmp.Or(full.Buffer, 64), cmp.Or(full.Bytes, 64<<20), cmp.Or(full.Gaps, 10_000)
	full.Cached, full.Concurrency = cmp.Or(full.Cached, 10_000), cmp.Or(full.Concurrency, 8)
	if min(full.Wait, full.FetchWait, full.Timeout) < 0 || min(full.Buffer, full.Gaps, full.Concurrency) < 0 || full.Bytes < 0 {
		return full, failure.Bug("make sequencer", "", "an option other than Cached is negative")
	}
	if full.Settled == nil {
		full.Settled = func(Event, Outcome) {}
	}
	full.Observe = full.Observe.WithDefaults()
	return full, nil
}

// retries are the pauses before retries of work without a caller.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 30 * time.Second}

// rules returns the options that machines use.
func (o *Options) rules(random func() float64) rules {
	r := rules{wait: o.Wait, limit: o.Buffer, halt: o.Halt,
		backoff: func(failures int) time.Duration { return retries.Delay(failures, random()) }}
	if o.Fetch != nil {
		r.fetch = o.FetchWait
	}
	return r
}
