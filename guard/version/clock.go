package version

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// logicalBits are the low bits of a version, which count events within one millisecond. The
// bits above are the milliseconds since 1970, which last until the year 6429.
const logicalBits = 16

// lastMillisecond is the maximum of the wall clock.
const lastMillisecond = 1<<(63-logicalBits) - 2

// ClockOptions configure a [Clock]; nil and the zero value are valid.
type ClockOptions struct {
	// MaxAhead is how far another producer's version may be ahead of this machine's wall clock,
	// at most [interlock.MaxAhead]; 0 means one minute.
	MaxAhead time.Duration
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
}

// A Clock is a hybrid logical clock (Kulkarni, Demirbas, Madappa, Avva and Leone, "Logical
// Physical Clocks", 2014). Its versions rise from call to call, even if the wall clock is set
// back, and are later than every observed version. So whatever a producer had seen when it
// acted is older than its action. Two producers may issue the same version: a Stamp has a Tie
// for that.
//
// A version is the physical and the logical part in one number, in place of the pair in the
// paper: milliseconds since 1970 times 65536, plus a count. A count that overflows borrows from
// the next millisecond.
//
// A Clock has no memory across restarts. If the wall clock may have been set back meanwhile,
// Observe the last stored version before the first Next. If Observe refuses it, the wall clock
// was set back by more than MaxAhead: issue no version until it is correct. A Clock is safe for
// concurrent use.
type Clock struct {
	now   func() time.Time
	ahead time.Duration

	mu   sync.Mutex
	last int64
}

// NewClock returns a clock. If the options are invalid, the error is of kind Bug.
func NewClock(o *ClockOptions) (*Clock, error) {
	c := &Clock{now: time.Now, ahead: time.Minute}
	if o != nil && (o.MaxAhead < 0 || o.MaxAhead > interlock.MaxAhead) {
		return nil, bug("make clock", "", fmt.Errorf("a MaxAhead of %v is not between 0 and %v", o.MaxAhead, interlock.MaxAhead))
	}
	if o != nil && o.MaxAhead > 0 {
		c.ahead = o.MaxAhead
	}
	if o != nil && o.Now != nil {
		c.now = o.Now
	}
	return c, nil
}

// Next returns the version of the present event, later than all before it.
func (c *Clock) Next() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.wall(), c.last+1)
	return c.last
}

// Stamp returns Next with the producer's id as its Tie.
func (c *Clock) Stamp(producer string) Stamp { return Stamp{Version: c.Next(), Tie: producer} }

// Observe makes every Next later than remote, a version of another producer's clock that came
// with an event. If remote is more than MaxAhead ahead of this machine's wall clock, Observe
// returns an [AheadError] and changes nothing. Otherwise it would move this clock, and all
// clocks that observe it, into the future. A version below 1 is a Bug.
func (c *Clock) Observe(remote int64) error {
	const op = "observe version"
	if remote < 1 {
		return bug(op, "", errors.New("versions count from 1"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ahead := TimeOf(remote).Sub(TimeOf(c.wall())); ahead > c.ahead {
		return problem(op, "", interlock.Definite, &AheadError{Version: remote, Ahead: ahead, Max: c.ahead})
	}
	c.last = max(c.last, remote)
	return nil
}

// Ahead returns how far the clock is ahead of the wall clock, because that was set back or
// because other clocks are ahead; 0 if it is not. Other producers refuse its versions once that
// exceeds their MaxAhead.
func (c *Clock) Ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, TimeOf(c.last).Sub(TimeOf(c.wall())))
}

// wall returns the first version of the present millisecond, above 0.
func (c *Clock) wall() int64 {
	return max(1, min(c.now().UnixMilli(), lastMillisecond)<<logicalBits)
}

// TimeOf returns the physical part of a Clock's version, to the millisecond.
func TimeOf(version int64) time.Time { return time.UnixMilli(version >> logicalBits).UTC() }

// An AheadError means that a version is too far in the future. It is Definite.
type AheadError struct {
	Version int64
	Ahead   time.Duration // beyond the wall clock
	Max     time.Duration
}

// Error names the difference.
func (e *AheadError) Error() string {
	return fmt.Sprintf("version %d is %v ahead of this machine's clock; at most %v is allowed", e.Version, e.Ahead, e.Max)
}

// ErrorKind returns [interlock.Definite].
func (e *AheadError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Stamp orders the states of one entity; see [driver.Stamp].
type Stamp = driver.Stamp

// Versioned is a state under its stamp; see [driver.Versioned].
type Versioned = driver.Versioned

// Outcome is the result of a change. See the package comment.
type Outcome = driver.VersionOutcome

// The outcomes. The caller has to act only after Applied.
const (
	// Stale means that a newer state is stored.
	Stale = driver.VersionStale
	// Applied means that the state is stored now, in SQL if the transaction commits.
	Applied = driver.VersionApplied
	// Duplicate means that the state was stored before.
	Duplicate = driver.VersionDuplicate
	// Terminal means that the state is newer than a stored state that is terminal.
	Terminal = driver.VersionTerminal
)

// A Change is a new state of an entity.
type Change struct {
	Entity string // 1 to [driver.MaxName] bytes of UTF-8 without NUL
	Stamp  Stamp
	// Deleted means that the entity was deleted. A [Table] keeps the stamp, so that no older
	// change restores the entity. A [Column] ignores it: mark the row as deleted instead of
	// deleting it.
	Deleted bool
	// Terminal means that no change can follow this one.
	Terminal bool
	// TerminalWins applies a terminal change even if a newer state that is not terminal is
	// stored. Set it if producers issue versions by their clocks, so that "packed at 4,
	// cancelled at 3" ends as cancelled in either order of arrival. Its cost: an old
	// cancellation from a dead-letter queue ends an entity that has continued since. It is
	// ignored if Terminal is false.
	TerminalWins bool
}

// Guard compares changes inside a SQL transaction. [Table] and [Column] implement it.
type Guard interface {
	// Apply raises the stamp of c.Entity to c.Stamp if that is newer, and keeps it locked until
	// the transaction ends. A concurrent change of the same entity waits, unless it was already
	// older. Call Apply before reading anything on which the change depends. If the outcome is
	// not Applied, nothing was done. After an error the transaction must be rolled back.
	//
	// Apply changes of several entities in one transaction in a fixed order, such as that of
	// their names. Otherwise two transactions can deadlock until the database undoes one of
	// them, which is Retryable.
	Apply(ctx context.Context, db driver.SQL, c Change) (Outcome, error)
}

// check returns a Bug if c is invalid.
func (c Change) check(op string) error {
	if err := validateEntity(op, c.Entity); err != nil {
		return err
	}
	if err := c.Stamp.Check(); err != nil {
		return bug(op, c.Entity, err)
	}
	return nil
}

// state returns c as it would be stored.
func (c Change) state() driver.Versioned {
	return driver.Versioned{Stamp: c.Stamp, Deleted: c.Deleted, Terminal: c.Terminal, TerminalWins: c.TerminalWins}
}

func validateEntity(op, entity string) error {
	return driver.CheckName(op, "an entity", entity, driver.MaxName)
}

func bug(op, name string, err error) error { return problem(op, name, interlock.Bug, err) }

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: kind, Err: err}
}
