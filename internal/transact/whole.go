package transact

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// spoilTimeout bounds the statement that spoils a transaction.
const spoilTimeout = 5 * time.Second

// Whole runs work in a transaction that somebody else will commit, perhaps even if
// work fails: a part of it must not be. If work does not succeed after
// it has called begin, by an error or a panic, nothing of the transaction can be
// committed any more. PostgreSQL then rolls back instead; on MariaDB it is rolled back
// at once, and what is sent by db afterwards is refused. The server reports why; it
// is the program's own, without quotes.
func Whole(ctx context.Context, db driver.SQL, why string, work func(begin func()) error) error {
	begun, good := false, false
	defer func() {
		if begun && !good {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoilTimeout)
			defer cancel()
			_, _ = db.Exec(ctx, spoil(db.Dialect(), why))
		}
	}()
	err := work(func() { begun = true })
	good = err == nil
	return err
}

// spoil is a statement that fails. That would not keep MariaDB from committing the
// others: there it undoes them first, and then fails as a deadlock does, after which
// the driver lets nothing more be sent.
func spoil(d driver.Dialect, why string) string {
	if d == driver.MariaDB {
		return `begin not atomic
	rollback;
	signal sqlstate '40001' set mysql_errno = 1213, message_text = '` + why + `';
end`
	}
	return `select '` + why + `'::integer`
}
