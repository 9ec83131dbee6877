package databases

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// Waiting is how many sessions of the database wait for a lock. MariaDB renews its list
// of them only if nobody has looked for a tenth of a second: there a statement waits
// that takes longer than that.
func (d *DB) Waiting(tb testing.TB) int64 {
	tb.Helper()
	query := `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
	if d.Dialect == driver.MariaDB {
		query = `select count(*) from information_schema.processlist
			where db = database() and id <> connection_id() and command in ('Query', 'Execute') and time_ms > 100`
	}
	return One[int64](tb, d, query)
}
