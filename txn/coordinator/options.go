package coordinator

import (
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Options of a coordinator; nil and the zero value work.
type Options struct {
	// Concurrency is how many transactions are read or written at once, without those
	// that wait or call; 0 means 256.
	Concurrency int
	// PerTarget is how many calls of one target are made at once; 0 means 64.
	PerTarget int
	// Held is how many transactions are kept in memory before no more are taken up
	// that are due, or were left by a former owner; 0 means 50,000. What is begun here
	// is always taken up. At most a quarter of it waits for places of one target, and
	// half for one whose call failed: whatever else has business with it is left
	// until it is due again, so that others are not kept out.
	Held int
	// Poll is how often the journal is asked for what is due and what others have begun,
	// in one request for all shards that are served here, and how often an Await looks
	// at what another process drives; 0 means a second. Without a Notifier both ask more often
	// after something was found that another process began, and while they wait for what
	// another process drives: after 20 ms, and then after twice as long each time.
	Poll time.Duration
	// Notifier wakes the owner of a shard when a transaction was begun, or has changed, in another
	// process, and those that wait for one when it has ended elsewhere. The processes of a
	// journal use the same notifier, for nothing else. nil leaves both to Poll.
	Notifier driver.Notifier
	// Recheck is how long a transaction that nobody seems to drive is left alone,
	// after its last record; 0 means a minute. A new owner of the shard does not wait
	// for it.
	Recheck time.Duration
	// Drain is how long Serve waits, once its context or the claim has ended, for calls
	// that are under way; 0 means 30 seconds. Those that have not returned by then are left:
	// see [Coordinator.Serve].
	Drain time.Duration
	// TakeOvers is after how many take-overs in a row a transaction becomes a dead letter
	// if no call of it was answered in between: its owner seems to crash each time. 0 means
	// 10, a number below zero never.
	TakeOvers int
	// Yield is how long a shard is kept in which transactions are due whose type this
	// process does not know. It is then given to another process, if one takes part and the
	// claim is a [Yielder], as that of a partition of claim/partition is: calls that are under way
	// return first. If no process moves those transactions on, it is kept for twice as long
	// each time, up to 64 times. 0 means 10 seconds; below zero it is never given away.
	Yield time.Duration
	// Reconcile is how often transactions that have ended are compared with their participants
	// in the background; one process does it for all. 0 means an hour for sagas with an
	// Action.Check, and never for TCC, whose branches it calls once more. Below zero it is
	// never done.
	Reconcile time.Duration
	// Retention is what is removed in the background.
	Retention Retention
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Coordinator
	// Now is the clock of due times and deadlines; nil is time.Now.
	Now func() time.Time
	// Random, in [0,1), is for the jitter of pauses; nil is that of math/rand.
	Random func() float64
}

func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	for _, n := range []struct {
		value     *int
		byDefault int
		name      string
	}{{&r.Concurrency, 256, "Concurrency"}, {&r.PerTarget, 64, "PerTarget"}, {&r.Held, 50_000, "Held"}} {
		if *n.value < 0 {
			return r, failure.Bug("make coordinator", "", "%s is %d, below zero", n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.byDefault
		}
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&r.Poll, time.Second}, {&r.Recheck, time.Minute}, {&r.Drain, 30 * time.Second}} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	if r.Yield == 0 {
		r.Yield = 10 * time.Second
	}
	var err error
	if r.Retention, err = r.Retention.resolve(); err != nil {
		return r, err
	}
	r.Hooks = r.Hooks.WithDefaults()
	if r.TakeOvers == 0 {
		r.TakeOvers = 10
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	if r.Random == nil {
		r.Random = rand.Float64
	}
	return r, nil
}
