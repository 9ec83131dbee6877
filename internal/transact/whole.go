package transact

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// spoilTimeout bounds the statement that spoils a transaction.
const spoilTimeout = 5 * time.Second

// Whole runs work in a transaction that its caller commits, perhaps even if work
// fails. If work calls begin and then fails or panics, the transaction can no longer
// be committed. PostgreSQL then rolls back instead of committing. MariaDB rolls back
// at once, and db refuses further statements. why is the reason that the server
// reports; it must be a constant without quotes.
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

// spoil returns a statement that fails. On MariaDB a failure does not prevent a
// commit: there the statement rolls back first, and then fails as a deadlock does.
// After that the driver refuses further statements.
func spoil(d driver.Dialect, why string) string {
	if d == driver.MariaDB {
		return `begin not atomic
	rollback;
	signal sqlstate '40001' set mysql_errno = 1213, message_text = '` + why + `';
end`
	}
	return `select '` + why + `'::integer`
}
