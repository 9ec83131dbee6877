package once

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// dialect is how a database keeps records. Its methods return the errors of the
// database as they are.
type dialect interface {
	create(ctx context.Context, db driver.SQL, t tables) error
	// record writes entries, of different ids and in their order, unless they are
	// there, and tells of each what was found. It waits for others that write them.
	record(ctx context.Context, db driver.SQL, t tables, entries []entry) (map[string]finding, error)
	// look is record that writes and waits for nothing; what is not there is not told.
	look(ctx context.Context, db driver.SQL, t tables, ids []string) (map[string]finding, error)
	// clean deletes records that are too old, so many at most.
	clean(ctx context.Context, db driver.SQL, t tables, limit int) (int64, error)
	sequencer
}

// sequencer keeps the places of keys in their sequences.
type sequencer interface {
	// advance moves key to p if p is what comes next, and tells whether it did. It
	// waits for others that move it.
	advance(ctx context.Context, db driver.SQL, t tables, key string, p place) (bool, error)
	// place reads where key is, and keeps others from moving it if lock is set.
	place(ctx context.Context, db driver.SQL, t tables, key string, lock bool) (place, error)
	// skip moves key to p, or leaves it where it is if it is there or beyond.
	skip(ctx context.Context, db driver.SQL, t tables, key string, p place) error
}

// entry is a record to be written.
type entry struct {
	id   string
	hash []byte
}

// finding is what stands under an id.
type finding struct {
	fresh bool   // this transaction has just written it
	hash  []byte // of the one that was there, if it is not fresh
}

func (in Inbox) speak(op string, db driver.SQL) (dialect, error) {
	switch d := db.Dialect(); {
	case d == driver.Postgres && in.Rotated:
		return rotated{}, nil
	case d == driver.Postgres:
		return postgres{}, nil
	case d == driver.MariaDB && in.Rotated:
		return nil, failure.Bug(op, in.Consumer, "a rotated inbox needs PostgreSQL")
	case d == driver.MariaDB:
		return mariadb{}, nil
	default:
		return nil, failure.Bug(op, in.Consumer, "SQL of %q is not spoken", string(d))
	}
}

// row runs a query that gives one row at most, and scans it.
func row(ctx context.Context, db driver.SQL, query string, args []any, dest ...any) (found bool, err error) {
	err = db.Query(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

// run executes statements without parameters.
func run(ctx context.Context, db driver.SQL, queries ...string) error {
	for _, q := range queries {
		if _, err := db.Exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
