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

// Reread lets a later step of a saga overwrite a row only if it has not changed since an earlier
// step read it: the reread value. It uses the version column of guard/version across
// transactions. [version.Update], for a read and write in one transaction, raises the same
// column. All writers of the row must raise it.
type Reread struct {
	// Row is the column of the version. Its Tie and Terminal are not used.
	Row version.Column
}

// A ChangedError reports that the row was written since it was read. Nothing was done. It is
// Definite: what was computed from the row is outdated, so the saga must undo, or read again.
type ChangedError struct {
	Table, Key string
	Seen       int64 // the version that was read
}

// Error names the row and the version.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q of table %s has changed since version %d was read", e.Key, e.Table, e.Seen)
}

// ErrorKind returns [interlock.Definite].
func (e *ChangedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Unchanged returns nil if a row still has the version that was seen (NULL counts as 0). It then
// raises the version by one and locks the row until the transaction ends: write it now. Otherwise
// it returns a [ChangedError], for a lower version too, because the row was then recreated. A
// second call for the same version also returns one, so it must be behind the step's barrier. A
// missing row is a [version.NoRowError]. Other errors are the database's. It costs one statement,
// and two if rejected.
func (r Reread) Unchanged(ctx context.Context, db driver.SQL, key string, seen int64) error {
	const op = "reread"
	if seen < 0 || seen == math.MaxInt64 {
		return failure.Bug(op, key, "version %d: 0 or more, and below the maximum, is required", seen)
	}
	row, err := findRow(op, db, r.Row.Table, r.Row.Key, r.Row.Version, key)
	if err != nil {
		return err
	}
	if raised, err := row.raise(ctx, seen); raised || err != nil {
		return err
	}
	there, err := row.exists(ctx)
	switch {
	case err != nil:
		return err
	case !there:
		return &version.NoRowError{Table: r.Row.Table, Key: key}
	}
	return &ChangedError{Table: r.Row.Table, Key: key, Seen: seen}
}
