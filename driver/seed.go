package driver

import (
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// Seed configures where Open starts the tokens of a namespace. The zero Seed starts them at the
// clock, and never below tokens that the namespace issued before.
type Seed struct {
	// After is a lower bound: every later token of the namespace is larger. Use it to move a
	// lock here from another system. Zero means no bound.
	After interlock.Token
	// Repair lowers an implausible base to the clock and records this. If it is nil, Open fails
	// with an [*ImplausibleError] instead. Guards that saw tokens of the old base reject the
	// new ones until they are rebased.
	Repair *Repair
}

// Repair is the reason and the author of a lowered base, each 1 to MaxName bytes of UTF-8. The
// record is a [BreakRecord] with the name [BaseName].
type Repair struct {
	Reason, By string
	// Lowered is called after the base was lowered, with the counters before and after. It may
	// be nil.
	Lowered func(before, after int64)
}

// Record calls Lowered and returns the owner to store in the record of a repair.
func (r *Repair) Record(before, after int64) (owner string) {
	if r.Lowered != nil {
		r.Lowered(before, after)
	}
	return fmt.Sprintf("counter %d, now %d", before, after)
}

// BaseName is the name under which Breaker.Breaks lists repairs of the base.
const BaseName = "interlock.base"

// Headroom is how far above the clock a base is raised. A process that opens within that time
// finds the base high enough.
const Headroom = time.Second

// maxSkew is the maximum by which a process's clock may be ahead of the server's when the
// process raises a base. It is half of what guards accept.
const maxSkew = interlock.MaxAhead / 2

// Validate returns an error if the Seed is invalid.
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

// Floor returns the lowest counter to start at: at least the clock, and above After. If no
// guard would accept After, the error is an [*ImplausibleError].
func (s Seed) Floor(now time.Time) (int64, error) {
	if s.After == 0 {
		return interlock.CounterAt(now), nil
	}
	if err := Plausible(s.After.Counter(), now); err != nil {
		return 0, err
	}
	return max(interlock.CounterAt(now), s.After.Counter()+1), nil
}

// Plausible returns an [*ImplausibleError] if guards would reject tokens with this counter,
// because it is more than interlock.MaxAhead ahead of the clock.
func Plausible(counter int64, now time.Time) error {
	if counter <= interlock.CounterAt(now.Add(interlock.MaxAhead)) {
		return nil
	}
	return &ImplausibleError{Counter: counter, Clock: now}
}

// An ImplausibleError means that the tokens of a namespace are too far in the future for any
// guard. A process with a wrong clock raised them, or a person edited them. It is Definite.
type ImplausibleError struct {
	Counter int64
	Clock   time.Time
}

// Error returns a message with the two times and the repair command.
func (e *ImplausibleError) Error() string {
	at := time.UnixMicro(interlock.EpochUnixMicro + e.Counter).UTC()
	return fmt.Sprintf("the tokens start at %s, more than %v after the clock's %s, and guards would refuse them: "+
		"if that clock is right, run \"interlock tokens repair --reason TEXT\"",
		at.Format(time.RFC3339), interlock.MaxAhead, e.Clock.UTC().Format(time.RFC3339))
}

// ErrorKind returns [interlock.Definite].
func (e *ImplausibleError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// SameClock returns a [*ClockError] if the process's clock is too far ahead of the server's to
// raise a base.
func SameClock(own, server time.Time) error {
	if own.Sub(server) <= maxSkew {
		return nil
	}
	return &ClockError{Own: own, Server: server}
}

// A ClockError means that a process's clock is ahead of the server's. It is Definite.
type ClockError struct{ Own, Server time.Time }

// Error returns a message with the two times.
func (e *ClockError) Error() string {
	return fmt.Sprintf("the clock of this machine says %s and that of the server %s: correct the wrong one, "+
		"because tokens start at the clock", e.Own.UTC().Format(time.RFC3339), e.Server.UTC().Format(time.RFC3339))
}

// ErrorKind returns [interlock.Definite].
func (e *ClockError) ErrorKind() interlock.ErrorKind { return interlock.Definite }
