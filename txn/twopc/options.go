package twopc

import (
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// Options of an engine; nil and the zero value work.
type Options struct {
	// Name is the second part of the transactions' type in the journal, at most 200
	// bytes; empty means "transaction".
	Name string
	// Prepare is how long a participant may take to vote; what has not voted by then
	// has voted no. 0 means 10 seconds.
	Prepare time.Duration
	// Timeout bounds one call of a commit or a rollback, and all that an abort does
	// before Run returns; 0 means 10 seconds.
	Timeout time.Duration
	// Patience is how long a branch may wait for its decision before it is presumed
	// that nobody will take it; 0 means a minute. It should be longer than Prepare and
	// the journal's own patience together: what is slower is aborted, not lost.
	Patience time.Duration
	// Scan is how often participants are asked for what they have in doubt; 0 means
	// 10 seconds.
	Scan time.Duration
	// Retention is for how long after its run began a decision is in the journal for
	// certain; 0 means 7 days. A branch that is older, and of which the journal knows
	// nothing, is left to a person.
	Retention time.Duration
	// Remind is how often the hook Heuristic is called for one that nobody acknowledged; 0
	// means a day.
	Remind time.Duration
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.TwoPC
}

func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
		name      string
	}{{&r.Prepare, 10 * time.Second, "Prepare"}, {&r.Timeout, 10 * time.Second, "Timeout"}, {&r.Patience, time.Minute, "Patience"},
		{&r.Scan, 10 * time.Second, "Scan"}, {&r.Retention, 7 * 24 * time.Hour, "Retention"}, {&r.Remind, 24 * time.Hour, "Remind"}} {
		if *d.value < 0 {
			return r, failure.Bug("make engine", "", "%s is %v, below zero", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.byDefault
		}
	}
	if r.Patience >= r.Retention {
		return r, failure.Bug("make engine", "", "Patience, %v, is not below Retention, %v: nothing would ever be presumed", r.Patience, r.Retention)
	}
	if r.Name == "" {
		r.Name = "transaction"
	}
	if len(r.Name) > 200 {
		return r, failure.Bug("make engine", r.Name, "its name has %d bytes; give it 1 to 200", len(r.Name))
	}
	r.Hooks = r.Hooks.WithDefaults()
	return r, nil
}
