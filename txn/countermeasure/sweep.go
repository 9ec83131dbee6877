package countermeasure

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Sweep deletes up to limit resources without a flag for longer than age, by the database's
// clock, and returns their number. It touches no flag. On MariaDB age must be longer than any
// transaction lasts: a transaction that began before the deletion gets no error that its reads
// are outdated.
func (l SemanticLock) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	f, err := l.open("sweep flags", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, f.Bug("an age of %v and a limit of %d", age, limit)
	}
	return f.Delete(ctx, sqltable.Deletion{Table: "flags", Key: "resource", Where: `owner = {empty} and until_at < {now} - {span}`,
		Args: []any{age.Microseconds()}, Order: "until_at", Limit: limit})
}

// Sweep forgets at most limit operations, of any records, that were logged or cancelled
// last longer than age ago by the database's clock, and returns how many. A repeated call
// for one of them is taken for the first, and Standing does not show them; so age
// is to be longer than any transaction is retried, and than a replay is wanted.
func (v VersionFile) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	l, err := v.log("sweep version file", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, l.Bug("an age of %v and a limit of %d", age, limit)
	}
	return l.Delete(ctx, sqltable.Deletion{Table: "log", Key: "record, position", Where: `logged_at < {now} - {span}`,
		Args: []any{age.Microseconds()}, Order: "logged_at", Limit: limit})
}
