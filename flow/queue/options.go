package queue

import (
	"cmp"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/process"
	"github.com/interlock-dev/interlock/observe"
)

// Failing is the policy for a message whose handler fails.
type Failing int

const (
	// Block retries the message until it succeeds; its key waits, other keys continue.
	Block Failing = iota
	// Skip makes the message a dead letter after Options.Attempts; its key continues.
	Skip
	// Pause parks the key after Options.Attempts, until an operator resumes it. A message without a
	// key becomes a dead letter.
	Pause
)

// Defaults of [Options].
const (
	DefaultConcurrency = 64
	DefaultInFlight    = 512
	DefaultBytes       = 16 << 20
	DefaultAttempts    = 5
	DefaultMinPause    = 100 * time.Millisecond
	DefaultMaxPause    = time.Minute
)

const maxReason = 2000 // bytes of an error that are stored

// Options of a consumer; nil and the zero value work.
type Options struct {
	// Concurrency is how many handlers run at the same time; 0 means [DefaultConcurrency].
	Concurrency int
	// InFlight and Bytes bound the messages that are received and not settled; 0 means
	// [DefaultInFlight] and [DefaultBytes].
	InFlight, Bytes int
	// Failing is the policy for a message whose handler fails.
	Failing Failing
	// Attempts is the number of failures after which Skip and Pause apply; 0 means
	// [DefaultAttempts]. The death of a consumer counts for the first message of each of its keys,
	// but only a handler that runs can end a message that kills its process: see Received.Attempt.
	Attempts int
	// MinPause and MaxPause bound the pause before the next attempt, which doubles each time, with
	// jitter; 0 means [DefaultMinPause] and [DefaultMaxPause].
	MinPause, MaxPause time.Duration
	// Lease is how long messages stay with a dead process; 0 means the default of the queue.
	Lease time.Duration
	// Owner is the name of this consumer, for display; empty means host, process and a random part.
	Owner string
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Queue
}

// withDefaults fills in the defaults. Invalid options are a Bug.
func (o *Options) withDefaults() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	for _, f := range []struct {
		field    *int
		standard int
	}{{&d.Concurrency, DefaultConcurrency}, {&d.InFlight, DefaultInFlight}, {&d.Bytes, DefaultBytes}, {&d.Attempts, DefaultAttempts}} {
		if *f.field = cmp.Or(*f.field, f.standard); *f.field < 0 {
			return d, invalid("%d is negative", *f.field)
		}
	}
	d.MinPause = cmp.Or(d.MinPause, DefaultMinPause)
	d.MaxPause = cmp.Or(d.MaxPause, max(DefaultMaxPause, d.MinPause))
	switch {
	case d.MinPause < 0 || d.MaxPause < d.MinPause:
		return d, invalid("pauses from %v to %v", d.MinPause, d.MaxPause)
	case d.Failing < Block || d.Failing > Pause:
		return d, invalid("policy %d", d.Failing)
	}
	if d.Owner == "" {
		d.Owner = process.Name() + ":" + rand.Text()[:6]
	}
	d.Hooks = d.Hooks.WithDefaults()
	return d, nil
}

func invalid(format string, args ...any) error {
	return &interlock.Error{Op: "consume queue", Kind: interlock.Bug, Err: fmt.Errorf("invalid options: "+format, args...)}
}

func (o Options) judgement() judgement {
	return judgement{o.Failing, o.Attempts, backoff.Policy{First: o.MinPause, Max: o.MaxPause}, mathrand.Float64}
}
