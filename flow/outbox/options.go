package outbox

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// Poison says what to do with a message that the sink refuses for good: its
// error is Definite, or a Bug.
type Poison int

const (
	// Block keeps it, and everything behind it of its key. It is tried again every
	// MaxPause, since receivers get fixed; [Table.MakeDeadLetter] is the other way out.
	Block Poison = iota
	// ToDeadLetters moves it to the dead letters after Options.Attempts.
	ToDeadLetters
)

// AfterDeadLetter says what to do with the messages of a key behind a dead letter.
type AfterDeadLetter int

const (
	// Continue delivers them. If the letter is replayed later, it comes after them.
	Continue AfterDeadLetter = iota
	// Park keeps them until no message of their key is a dead letter any more:
	// until those are replayed or discarded.
	Park
)

// Defaults of [Options].
const (
	DefaultBatch    = 256
	DefaultAttempts = 3
	DefaultPublish  = 30 * time.Second
	DefaultDrain    = 5 * time.Second
	DefaultMinPause = 100 * time.Millisecond
	DefaultMaxPause = time.Minute
	DefaultMinPoll  = time.Millisecond
	DefaultMaxPoll  = time.Second
)

// Options of a relay; nil and the zero value work.
type Options struct {
	// Batch is how many messages are published at once at most, 1 to 1000; 0 means
	// [DefaultBatch]. A batch has 8 MiB of payload at most, or one message.
	Batch int
	// Poison is what to do with messages that are refused.
	Poison Poison
	// Attempts is how often a refused message is tried, at least, before it becomes a
	// dead letter; 0 means [DefaultAttempts]. Block does not count.
	Attempts int
	// GiveUp makes a dead letter also of a message that was tried so often without
	// being refused; 0 means never: a receiver that is away is not the message's
	// fault. Block does not count.
	GiveUp int
	// AfterDeadLetter is what to do with messages behind a dead letter.
	AfterDeadLetter AfterDeadLetter
	// MinPause and MaxPause bound the pause before a message is tried again, which
	// doubles each time and is jittered; 0 means [DefaultMinPause], [DefaultMaxPause].
	MinPause, MaxPause time.Duration
	// Publish bounds each call of the sink; 0 means [DefaultPublish].
	Publish time.Duration
	// Drain is how long a call of the sink that is under way when the relay is
	// told to end is waited for; 0 means [DefaultDrain]. It ends with the claim.
	Drain time.Duration
	// MinPoll and MaxPoll bound the pause between two looks of a relay for messages of its
	// slices, of which each is one statement: the pause is a quarter of the time for which
	// no look has found anything. 0 means [DefaultMinPoll], [DefaultMaxPoll].
	MinPoll, MaxPoll time.Duration
	// KeepAudit is how long the relay of slice 0 keeps records of what was done by hand;
	// 0 means [DefaultKeepAudit], below zero for ever.
	KeepAudit time.Duration
	// Notifier wakes the relay when it is notified; nil means that only [Relay.Wake] does.
	Notifier driver.Notifier
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Outbox

	random func() float64   // in [0,1), for pauses
	now    func() time.Time // for what passes between two moments
}

// Validate says what is wrong, as an error of kind Bug.
func (o *Options) Validate() error {
	_, err := o.orDefault()
	return err
}

func (o *Options) orDefault() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	d.Batch, d.Attempts = cmp.Or(d.Batch, DefaultBatch), cmp.Or(d.Attempts, DefaultAttempts)
	for _, t := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{{"MinPause", &d.MinPause, DefaultMinPause}, {"MaxPause", &d.MaxPause, max(DefaultMaxPause, d.MinPause)},
		{"Publish", &d.Publish, DefaultPublish}, {"Drain", &d.Drain, DefaultDrain},
		{"MinPoll", &d.MinPoll, DefaultMinPoll}, {"MaxPoll", &d.MaxPoll, max(DefaultMaxPoll, d.MinPoll)}} {
		if *t.value = cmp.Or(*t.value, t.or); *t.value < 0 {
			return d, impossible("%s of %v", t.name, *t.value)
		}
	}
	switch {
	case d.Batch < 1 || d.Batch > 1000:
		return d, impossible("batch of %d: 1 to 1000", d.Batch)
	case d.Attempts < 1 || d.GiveUp < 0:
		return d, impossible("%d attempts, or giving up after %d", d.Attempts, d.GiveUp)
	case d.Poison < Block || d.Poison > ToDeadLetters || d.AfterDeadLetter < Continue || d.AfterDeadLetter > Park:
		return d, impossible("policy %d, %d", d.Poison, d.AfterDeadLetter)
	case d.MaxPause < d.MinPause || d.MaxPoll < d.MinPoll:
		return d, impossible("pauses from %v to %v, or polls from %v to %v", d.MinPause, d.MaxPause, d.MinPoll, d.MaxPoll)
	}
	d.KeepAudit = cmp.Or(d.KeepAudit, DefaultKeepAudit)
	d.Hooks = d.Hooks.WithDefaults()
	if d.random == nil {
		d.random = rand.Float64
	}
	if d.now == nil {
		d.now = time.Now
	}
	return d, nil
}

func impossible(format string, args ...any) error {
	return &interlock.Error{Op: "make relay", Kind: interlock.Bug, Err: fmt.Errorf("impossible options: "+format, args...)}
}

func (o Options) judgement() judgement {
	return judgement{deadLetters: o.Poison == ToDeadLetters, attempts: o.Attempts, giveUp: o.GiveUp, follow: o.AfterDeadLetter,
		retry: backoff.Policy{First: o.MinPause, Max: o.MaxPause}, random: o.random}
}
