package countermeasure

import (
	"context"
	"fmt"
	"math"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Reread lets a later step of a saga overwrite a row only if it is still as an earlier
// step has read it: the reread value. It is the version column of guard/version, seen
// from one transaction to another: version.Update, for what reads and writes in one,
// raises the same column, and all who write the row must raise it.
type Reread struct {
	// Row says where the version stands. Its Tie and Terminal are not used.
	Row version.Column
}

// A ChangedError tells that the row was written since it was read. Nothing was done. It
// is Definite: what was computed from the row is out of date, and the saga has to undo,
// or to read again.
type ChangedError struct {
	Table, Key string
	Seen       int64 // the version that was read
}

// Error names the row and the version.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q of table %s has changed since version %d was read", e.Key, e.Table, e.Seen)
}

// ErrorKind is [interlock.Definite].
func (e *ChangedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Unchanged returns nil if the version of a row is still the one that was seen, NULL
// being 0, raises it by one, and keeps the row locked until the transaction ends: write
// it now. Otherwise it is a [ChangedError], for a lower version too: that row was created
// again. It is one also for who calls it again, so it stands behind the step's barrier. A
// row that is gone is a version.NoRowError; further errors are the database's, with their
// kind. It costs one statement, and two to be refused.
func (r Reread) Unchanged(ctx context.Context, db driver.SQL, key string, seen int64) error {
	const op = "reread"
	if seen < 0 || seen == math.MaxInt64 {
		return failure.Bug(op, key, "version %d: versions count from 0, and there is one more", seen)
	}
	row, err := findRow(op, db, r.Row.Table, r.Row.Key, r.Row.Version, key)
	if err != nil {
		return err
	}
	if raised, err := row.raise(ctx, seen); raised || err != nil {
		return err
	}
	there, err := row.there(ctx)
	switch {
	case err != nil:
		return err
	case !there:
		return &version.NoRowError{Table: r.Row.Table, Key: key}
	}
	return &ChangedError{Table: r.Row.Table, Key: key, Seen: seen}
}
