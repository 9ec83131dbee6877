package sequence

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Options are how a sequencer waits and what it holds. The zero value, and nil, mean
// the defaults.
type Options struct {
	// Wait is how long missing events are waited for, from when the gap was noticed;
	// 0 means 5 s.
	Wait time.Duration
	// Fetch asks the source for missing events once the wait has ended: those of
	// the hole that it has, in any order. It is asked for no more than Buffer at a
	// time, and again while that helps: once it has none of them the whole hole is
	// passed over, also what was not asked for. nil means that there is no source.
	Fetch func(ctx context.Context, missing Hole) ([]Event, error)
	// FetchWait bounds one Fetch; 0 means 5 s. What it gives later is taken as if
	// it had been offered.
	FetchWait time.Duration
	// Halt keeps a key from going on without what is missing once the wait has
	// ended and Fetch has not helped: it stands still until the events come or
	// Resume is called. Otherwise the hole is recorded and the key goes on.
	Halt bool

	// Buffer is how many events of one key are held; 0 means 64.
	Buffer int
	// Bytes is how many bytes of payload and key are held in all; 0 means 64 MiB.
	// What is fetched may exceed it by Buffer events for each fetch under way.
	Bytes int64
	// Gaps is how many keys may hold events at once; 0 means 10,000.
	Gaps int
	// Cached is how many positions of idle keys are remembered, to spare a look
	// into the store; 0 means 10,000, below 0 none.
	Cached int

	// Timeout bounds what is done for a key without a caller: a step of the store
	// with the handler in it; 0 means 30 s.
	Timeout time.Duration
	// Concurrency is how many keys are worked on at once without a caller, and how
	// many fetches are under way; 0 means 8.
	Concurrency int
	// Settled receives the outcome of each event that was Held: once, unless the
	// sequencer is closed before. It must return at once and must not call the
	// sequencer. nil means that nobody acknowledges anything.
	Settled func(Event, Outcome)
	// Observe receives what happens; nil logs failures, see package observe.
	Observe *observe.Sequence
}

// with fills in the defaults, and refuses what is below zero.
func (o *Options) with() (Options, error) {
	var full Options
	if o != nil {
		full = *o
	}
	standard(&full.Wait, 5*time.Second)
	standard(&full.FetchWait, 5*time.Second)
	standard(&full.Timeout, 30*time.Second)
	standard(&full.Buffer, 64)
	standard(&full.Bytes, 64<<20)
	standard(&full.Gaps, 10_000)
	standard(&full.Cached, 10_000)
	standard(&full.Concurrency, 8)
	if min(full.Wait, full.FetchWait, full.Timeout) < 0 || min(full.Buffer, full.Gaps, full.Concurrency) < 0 || full.Bytes < 0 {
		return full, failure.Bug("make sequencer", "", "no option but Cached may be below zero")
	}
	if full.Settled == nil {
		full.Settled = func(Event, Outcome) {}
	}
	full.Observe = full.Observe.WithDefaults()
	return full, nil
}

func standard[V int | int64 | time.Duration](field *V, value V) {
	if *field == 0 {
		*field = value
	}
}

// retries are the waits between attempts at what nobody waits for.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 30 * time.Second}

// rules are what machines know of the options.
func (o *Options) rules(random func() float64) rules {
	r := rules{wait: o.Wait, limit: o.Buffer, halt: o.Halt,
		backoff: func(failures int) time.Duration { return retries.Delay(failures, random()) }}
	if o.Fetch != nil {
		r.fetch = o.FetchWait
	}
	return r
}
