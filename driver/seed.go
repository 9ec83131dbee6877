package driver

import (
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// Seed says where Open starts the tokens of a namespace. The zero Seed starts them
// at the clock, and never below what the namespace issued before.
type Seed struct {
	// After has every later token of the namespace be larger than this one, so that
	// a lock can move here from another system. Zero means nothing.
	After interlock.Token
	// Repair lowers a base that is implausible to the clock, on record. Nil means
	// that Open fails with an [*ImplausibleError] then. Guards that saw tokens of
	// the old base refuse the new ones until they are rebased.
	Repair *Repair
}

// Repair is why a base is lowered, and on whose word: each of 1 to MaxName bytes of
// UTF-8. The record is a [BreakRecord] of the name [BaseName].
type Repair struct {
	Reason, By string
	// Lowered is called when the base was lowered, with its counter before and after;
	// nil means nothing.
	Lowered func(before, after int64)
}

// Record is who had the base, for the record of a repair, and calls Lowered.
func (r *Repair) Record(before, after int64) (owner string) {
	if r.Lowered != nil {
		r.Lowered(before, after)
	}
	return fmt.Sprintf("counter %d, now %d", before, after)
}

// BaseName is the name under which Breaker.Breaks shows repairs of the base.
const BaseName = "interlock.base"

// Headroom is how far beyond the clock a base is raised: a process that opens
// within that time finds it high enough.
const Headroom = time.Second

// maxSkew is how far a process's clock may be ahead of the server's for it to raise
// a base by it: half of what guards accept.
const maxSkew = interlock.MaxAhead / 2

// Validate refuses what no record can hold.
func (s Seed) Validate() error {
	if r := s.Repair; r != nil {
		for _, text := range []string{r.Reason, r.By} {
			if text == "" || len(text) > MaxName {
				return fmt.Errorf("a repair needs a reason and an author, of 1 to %d bytes each", MaxName)
			}
		}
	}
	if s.After < 0 {
		return fmt.Errorf("%d is not a token", s.After)
	}
	return nil
}

// Floor is the lowest counter to start at: that of the clock, and above After. An
// After that no guard would accept is an [*ImplausibleError].
func (s Seed) Floor(now time.Time) (int64, error) {
	if s.After == 0 {
		return interlock.CounterAt(now), nil
	}
	if err := Plausible(s.After.Counter(), now); err != nil {
		return 0, err
	}
	return max(interlock.CounterAt(now), s.After.Counter()+1), nil
}

// Plausible is an [*ImplausibleError] if guards would refuse tokens of this counter:
// it is more than interlock.MaxAhead beyond the clock.
func Plausible(counter int64, now time.Time) error {
	if counter <= interlock.CounterAt(now.Add(interlock.MaxAhead)) {
		return nil
	}
	return &ImplausibleError{Counter: counter, Clock: now}
}

// An ImplausibleError says that the tokens of a namespace are too far in the future
// for any guard: a process with a wrong clock raised them, or somebody edited them.
// It is Definite.
type ImplausibleError struct {
	Counter int64
	Clock   time.Time
}

// Error names the two times and the repair.
func (e *ImplausibleError) Error() string {
	at := time.UnixMicro(interlock.EpochUnixMicro + e.Counter).UTC()
	return fmt.Sprintf("the tokens start at %s, more than %v after the clock's %s, and guards would refuse them: "+
		"if that clock is right, run \"interlock tokens repair --reason TEXT\"",
		at.Format(time.RFC3339), interlock.MaxAhead, e.Clock.UTC().Format(time.RFC3339))
}

// ErrorKind is [interlock.Definite].
func (e *ImplausibleError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// SameClock is a [*ClockError] if the process's clock is so far ahead of the
// server's that a base must not be raised by it.
func SameClock(own, server time.Time) error {
	if own.Sub(server) <= maxSkew {
		return nil
	}
	return &ClockError{Own: own, Server: server}
}

// A ClockError says that a process's clock is ahead of the server's. It is Definite.
type ClockError struct{ Own, Server time.Time }

// Error names the two times.
func (e *ClockError) Error() string {
	return fmt.Sprintf("the clock of this machine says %s and that of the server %s: correct the wrong one, "+
		"because tokens start at the clock", e.Own.UTC().Format(time.RFC3339), e.Server.UTC().Format(time.RFC3339))
}

// ErrorKind is [interlock.Definite].
func (e *ClockError) ErrorKind() interlock.ErrorKind { return interlock.Definite }
