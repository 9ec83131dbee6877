package version_test

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
)

// testPurgeMany: a limit beyond the number of parameters that a statement takes.
func testPurgeMany(w world) {
	const many = 70_000
	w.DB.Exec(w.T, map[driver.Dialect]string{
		driver.Postgres: `insert into interlock_version select 'gone ' || n, 1, '', true, false, now() - interval '1 hour' from generate_series(1, 70000) n`,
		driver.MariaDB: `insert into interlock_version (entity, stamp, deleted, repeated, changed_at)
			select concat('gone ', seq), concat('0', lpad('1', 19, '0')), 1, 0, utc_timestamp(6) - interval 1 hour from seq_1_to_70000`,
	}[w.Dialect])
	for _, want := range []int64{many - 1, 1, 0} {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
			n, err := version.Table{}.Purge(ctx, db, time.Minute, many-1)
			if n != want {
				w.Errorf("purged %d, want %d", n, want)
			}
			return err
		})
	}
}

// testPurgeLimit: however the database runs the statement.
func testPurgeLimit(w world) {
	if w.Dialect != driver.Postgres {
		w.Skip("there is no such plan")
	}
	w.DB.Exec(w.T, `insert into interlock_version select 'gone ' || n, 1, '', true, false, now() - interval '1 hour' from generate_series(1, 50) n`)
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		for _, off := range []string{"hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize"} {
			if _, err := db.Exec(ctx, `set local enable_`+off+` = off`); err != nil {
				return err
			}
		}
		n, err := version.Table{}.Purge(ctx, db, time.Minute, 7)
		if n != 7 {
			w.Errorf("purged %d, want 7", n)
		}
		return err
	})
}
