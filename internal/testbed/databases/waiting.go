package databases

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// Waiting returns the number of sessions of the database that wait for a lock. MariaDB
// refreshes its list only if it was not read for a tenth of a second. There, a statement
// that takes longer than that counts as waiting.
func (d *DB) Waiting(tb testing.TB) int64 {
	tb.Helper()
	query := `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
	if d.Dialect == driver.MariaDB {
		query = `select count(*) from information_schema.processlist
			where db = database() and id <> connection_id() and command in ('Query', 'Execute') and time_ms > 100`
	}
	return One[int64](tb, d, query)
}
