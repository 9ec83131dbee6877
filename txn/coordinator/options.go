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
	// Concurrency bounds the transactions that are read or written at once, without those that
	// wait or call; 0 means 256.
	Concurrency int
	// PerTarget bounds the concurrent calls of one target; 0 means 64.
	PerTarget int
	// Held bounds the transactions in memory; 0 means 50,000. Above it, due transactions and
	// those of a former owner wait; those begun here do not. At most a quarter of Held waits for
	// places of one target, and half for a target whose calls failed. Others that call this
	// target are left until they are due again.
	Held int
	// Poll is the interval of requests for due transactions, one request for all shards served
	// here, and of the reads of an Await; 0 means a second. Without a Notifier the intervals are
	// shorter after a poll has found a transaction of another process, and during an Await for
	// one: they begin at 20 ms, and double up to Poll.
	Poll time.Duration
	// Notifier wakes the owner of a shard when another process begins or changes a transaction,
	// and waiters when a transaction ends in another process. The processes of a journal share
	// one notifier, for nothing else. nil leaves both to Poll.
	Notifier driver.Notifier
	// Recheck is the time after its last record when a transaction is due again, unless its
	// protocol set another time; 0 means a minute. A new owner of the shard does not wait for
	// it.
	Recheck time.Duration
	// Drain bounds the wait of Serve for calls under way, once its context or the claim has
	// ended; 0 means 30 seconds. Later ones are abandoned: see [Coordinator.Serve].
	Drain time.Duration
	// TakeOvers is the number of take-overs in a row without an answered call after which a
	// transaction becomes a dead letter: its owner seems to crash each time. 0 means 10; below
	// zero it never does.
	TakeOvers int
	// Yield is the time after which a shard with due transactions of unknown types is given to
	// another process, if there is one. The claim must be a [Yielder], such as that of a
	// partition of claim/partition. Calls under way return first. If no process drives those
	// transactions, the time doubles, up to 64 times Yield. 0 means 10 seconds; below zero a
	// shard is never given away.
	Yield time.Duration
	// Reconcile is the interval of comparisons of ended transactions with their participants, in
	// one process for all. 0 means an hour for sagas with an Action.Check, and never for TCC,
	// whose branches it calls once more. Below zero there are none.
	Reconcile time.Duration
	// Retention sets what is removed in the background.
	Retention Retention
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Coordinator
	// Now is the clock of due times and deadlines; nil means time.Now.
	Now func() time.Time
	// Random returns a number in [0,1) for the jitter of pauses; nil means that of math/rand.
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
