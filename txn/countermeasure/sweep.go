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

// Sweep deletes at most limit operations, of any records, whose last log or cancellation is older than
// age by the database's clock. It returns their number. A repeated call of a deleted operation counts as
// the first, and Standing does not return it. So choose age longer than transactions are retried and
// replays are needed.
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
