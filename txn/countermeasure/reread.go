package countermeasure

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
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
// it now. Otherwise it is a [ChangedError]; it is one too for who calls it again, so it
// stands behind the step's barrier. Further errors are those of version.Column.Apply,
// with a version.NoRowError for a row that is gone, and so are the costs.
func (r Reread) Unchanged(ctx context.Context, db driver.SQL, key string, seen int64) error {
	if db == nil || seen < 0 {
		return &interlock.Error{Op: "reread", Name: key, Kind: interlock.Bug,
			Err: fmt.Errorf("version %d, of a transaction that is %T: versions count from 0", seen, db)}
	}
	row := r.Row
	row.Tie, row.Terminal = "", "" // versions that rise, and are never equal, make Apply a compare-and-set
	outcome, err := row.Apply(ctx, db, version.Change{Entity: key, Stamp: version.Stamp{Version: seen + 1}})
	if err == nil && outcome != version.Applied {
		err = &ChangedError{Table: row.Table, Key: key, Seen: seen}
	}
	return err
}
