package version

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
