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

// Poison is the policy for a message that the sink rejects: its error is Definite or a Bug.
type Poison int

const (
	// Block keeps the message and the later ones of its key. The relay retries it every MaxPause,
	// because the receiver may be fixed. [Table.MakeDeadLetter] ends that.
	Block Poison = iota
	// ToDeadLetters makes the message a dead letter after Options.Attempts.
	ToDeadLetters
)

// AfterDeadLetter is the policy for messages of a key after a dead letter.
type AfterDeadLetter int

const (
	// Continue delivers them. A letter that is replayed later comes after them.
	Continue AfterDeadLetter = iota
	// Park keeps them until all dead letters of their key are replayed or discarded.
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
	// Batch is the largest number of messages in one call of the sink, 1 to 1000; 0 means
	// [DefaultBatch]. A batch has at most 8 MiB of payload, or one message.
	Batch int
	// Poison is the policy for rejected messages.
	Poison Poison
	// Attempts is the number of attempts after which a rejected message becomes a dead letter; 0
	// means [DefaultAttempts]. It has no effect with Block.
	Attempts int
	// GiveUp is the number of attempts after which any other failing message becomes a dead letter;
	// 0 means never: an unavailable receiver is no fault of the message. It has no effect with Block.
	GiveUp int
	// AfterDeadLetter is the policy for messages after a dead letter.
	AfterDeadLetter AfterDeadLetter
	// MinPause and MaxPause bound the pause before a message is retried, which doubles each time,
	// with jitter; 0 means [DefaultMinPause], [DefaultMaxPause].
	MinPause, MaxPause time.Duration
	// Publish bounds each call of the sink; 0 means [DefaultPublish].
	Publish time.Duration
	// Drain is how long a relay that ends waits for a running call of the sink; 0 means
	// [DefaultDrain]. It ends with the claim.
	Drain time.Duration
	// MinPoll and MaxPoll bound the pause between two polls for messages of the relay's slices. A
	// poll is one statement; the pause is a quarter of the time since a poll last found a message.
	// 0 means [DefaultMinPoll], [DefaultMaxPoll].
	MinPoll, MaxPoll time.Duration
	// KeepAudit is how long audit records are kept; the relay of slice 0 deletes older ones. 0 means
	// [DefaultKeepAudit], negative means for ever.
	KeepAudit time.Duration
	// Notifier wakes the relay; nil means that only polls and [Relay.Wake] do.
	Notifier driver.Notifier
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Outbox

	random func() float64   // in [0,1), for pauses
	now    func() time.Time // for durations
}

// Validate returns an error of kind Bug if the options are invalid.
func (o *Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

func (o *Options) withDefaults() (Options, error) {
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
			return d, invalid("%s of %v", t.name, *t.value)
		}
	}
	switch {
	case d.Batch < 1 || d.Batch > 1000:
		return d, invalid("batch of %d: 1 to 1000", d.Batch)
	case d.Attempts < 1 || d.GiveUp < 0:
		return d, invalid("%d attempts, or giving up after %d", d.Attempts, d.GiveUp)
	case d.Poison < Block || d.Poison > ToDeadLetters || d.AfterDeadLetter < Continue || d.AfterDeadLetter > Park:
		return d, invalid("policy %d, %d", d.Poison, d.AfterDeadLetter)
	case d.MaxPause < d.MinPause || d.MaxPoll < d.MinPoll:
		return d, invalid("pauses from %v to %v, or polls from %v to %v", d.MinPause, d.MaxPause, d.MinPoll, d.MaxPoll)
	}
	d.Drain = min(d.Drain, forever) // so that it can be added to
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

func invalid(format string, args ...any) error {
	return &interlock.Error{Op: "make relay", Kind: interlock.Bug, Err: fmt.Errorf("invalid options: "+format, args...)}
}

func (o Options) judgement() judgement {
	return judgement{deadLetters: o.Poison == ToDeadLetters, attempts: o.Attempts, giveUp: o.GiveUp, follow: o.AfterDeadLetter,
		retry: backoff.Policy{First: o.MinPause, Max: o.MaxPause}, random: o.random}
}
