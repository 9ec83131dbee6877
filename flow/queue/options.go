package queue

import (
	"cmp"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// Failing says what to do with a message whose handler fails.
type Failing int

const (
	// Block tries it again until it succeeds; its key waits, and other keys go on.
	Block Failing = iota
	// Skip makes it a dead letter after Options.Attempts; its key goes on.
	Skip
	// Pause parks its key after Options.Attempts, until an operator resumes it.
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

// maxReason is how much of an error's text is stored.
const maxReason = 2000

// Options of a consumer; nil and the zero value work.
type Options struct {
	// Concurrency is how many handlers run at the same time; 0 means [DefaultConcurrency].
	Concurrency int
	// InFlight and Bytes bound the messages that were received and are not settled; 0 means
	// [DefaultInFlight] and [DefaultBytes].
	InFlight, Bytes int
	// Failing is what to do with a message whose handler fails.
	Failing Failing
	// Attempts is after how many failures Skip and Pause give up; 0 means [DefaultAttempts].
	// A consumer that dies counts for the first message of each key that it had.
	Attempts int
	// MinPause and MaxPause bound the pause before another attempt, which doubles each time
	// and is jittered; 0 means [DefaultMinPause] and [DefaultMaxPause].
	MinPause, MaxPause time.Duration
	// Lease is how long messages stay with a process that has died; 0 is the queue's default.
	Lease time.Duration
	// Owner names this consumer, for people; empty is the host, the process and a random part.
	Owner string
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Queue
}

// withDefaults fills in the defaults, and refuses what is impossible as a Bug.
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
			return d, impossible("%d: numbers are above zero", *f.field)
		}
	}
	d.MinPause = cmp.Or(d.MinPause, DefaultMinPause)
	d.MaxPause = cmp.Or(d.MaxPause, max(DefaultMaxPause, d.MinPause))
	switch {
	case d.MinPause < 0 || d.MaxPause < d.MinPause:
		return d, impossible("pauses from %v to %v", d.MinPause, d.MaxPause)
	case d.Failing < Block || d.Failing > Pause:
		return d, impossible("policy %d", d.Failing)
	}
	if d.Owner == "" {
		host, _ := os.Hostname() // an empty one is good enough for people
		d.Owner = fmt.Sprintf("%s:%d:%s", host, os.Getpid(), rand.Text()[:6])
	}
	d.Hooks = d.Hooks.WithDefaults()
	return d, nil
}

func impossible(format string, args ...any) error {
	return &interlock.Error{Op: "consume queue", Kind: interlock.Bug, Err: fmt.Errorf("impossible options: "+format, args...)}
}

func (o Options) judgement() judgement {
	return judgement{o.Failing, o.Attempts, backoff.Policy{First: o.MinPause, Max: o.MaxPause}, mathrand.Float64}
}

// clean is s as UTF-8 without NUL.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
