package version

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Stamp orders the states of one entity; see [driver.Stamp].
type Stamp = driver.Stamp

// Outcome is the outcome of a change. See the package's comment.
type Outcome = driver.VersionOutcome

// The outcomes. Only after Applied there is something to do.
const (
	// Stale: a newer state is stored.
	Stale = driver.VersionStale
	// Applied: it is stored now, in SQL if the transaction commits.
	Applied = driver.VersionApplied
	// Duplicate: it had been stored before.
	Duplicate = driver.VersionDuplicate
	// Terminal: it is newer than a stored state that is terminal.
	Terminal = driver.VersionTerminal
)

// A Change is the news that an entity has a new state.
type Change struct {
	Entity string // 1 to [driver.MaxName] bytes of UTF-8 without NUL
	Stamp  Stamp
	// Deleted says that the entity is gone. A [Table] keeps the stamp, so that no
	// older change brings it back. A [Column] makes no difference: mark the row as
	// deleted instead of deleting it.
	Deleted bool
	// Terminal says that no change can follow this one.
	Terminal bool
	// TerminalWins applies a terminal change also where a newer state that is not
	// terminal is stored. Set it where producers give versions by their clocks, so
	// that "packed at 4, cancelled at 3" ends as cancelled in either order of
	// arrival. The price: an old cancellation out of a dead-letter queue ends what
	// went on since. It is ignored if Terminal is false.
	TerminalWins bool
}

// Guard judges changes inside a SQL transaction. It is a [Table] or a [Column].
type Guard interface {
	// Apply raises the stamp of c.Entity to c.Stamp if that is newer, and keeps it
	// locked until the transaction ends: a change of the same entity
	// meanwhile waits, unless that was old before. Call it before anything is read
	// that the change depends on.
	// If the outcome is not Applied nothing was done. After an error the
	// transaction must be rolled back.
	//
	// Apply changes of several entities in one transaction in one
	// order, such as that of their names. Else two may wait for each other, until
	// the database undoes one of them, which is Retryable.
	Apply(ctx context.Context, db driver.SQL, c Change) (Outcome, error)
}

// check refuses what no database is asked about.
func (c Change) check(op string) error {
	if err := named(op, c.Entity); err != nil {
		return err
	}
	if err := c.Stamp.Check(); err != nil {
		return bug(op, c.Entity, err)
	}
	return nil
}

// state is c as it would be stored.
func (c Change) state() driver.Versioned {
	return driver.Versioned{Stamp: c.Stamp, Deleted: c.Deleted, Terminal: c.Terminal, TerminalWins: c.TerminalWins}
}

func named(op, entity string) error {
	return driver.CheckName(op, "an entity", entity, driver.MaxName)
}

func bug(op, name string, err error) error { return problem(op, name, interlock.Bug, err) }

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: kind, Err: err}
}
