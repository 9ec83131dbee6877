package version_test

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// aged makes all that is in the table an hour older.
var aged = map[driver.Dialect]string{
	driver.Postgres: `update interlock_version set changed_at = changed_at - interval '1 hour'`,
	driver.MariaDB:  `update interlock_version set changed_at = changed_at - interval 1 hour`,
}

func testPurge(w world) {
	t := version.Table{}
	for i := range 7 {
		w.mustApply(t, deleted(change(fmt.Sprint("old ", i), 5, "")), version.Applied)
	}
	w.mustApply(t, change("alive", 5, ""), version.Applied)
	w.mustApply(t, terminal(change("ended", 5, "")), version.Applied)
	w.DB.Exec(w.T, aged[w.Dialect])
	w.mustApply(t, deleted(change("young", 5, "")), version.Applied)
	w.mustApply(t, change("old 0", 6, ""), version.Applied) // it came back
	purge := func(age time.Duration, limit int) (n int64) {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
			n, err = t.Purge(ctx, db, age, limit)
			return err
		})
		return n
	}
	if n := purge(2*time.Hour, 0); n != 0 {
		w.Errorf("%d were purged before their time", n)
	}
	for i, want := range []int64{4, 2, 0} {
		if n := purge(30*time.Minute, 4); n != want {
			w.Errorf("purge %d removed %d, want %d", i, n, want)
		}
	}
	for id, kept := range map[string]bool{"old 0": true, "old 1": false, "alive": true, "ended": true, "young": true} {
		if got := w.state(id).Stamp.Version > 0; got != kept {
			w.Errorf("%s is kept: %v", id, got)
		}
	}
	w.mustApply(t, change("young", 4, ""), version.Stale)
	w.mustApply(t, change("old 1", 4, ""), version.Applied) // which is why age must be long
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		for _, bad := range []struct {
			age   time.Duration
			limit int
		}{{0, 1}, {-time.Hour, 1}, {time.Hour, -1}} {
			_, err := t.Purge(ctx, db, bad.age, bad.limit)
			mustFail(w.T, err, interlock.Bug, nil)
		}
		return nil
	})
}

// testPurgeBehind: a tombstone that is about to be replaced by something newer is
// left alone, as is what replaced it.
func testPurgeBehind(w world) {
	t := version.Table{}
	w.guards()
	w.order("back")
	w.mustApply(t, deleted(change("back", 1, "")), version.Applied)
	w.DB.Exec(w.T, aged[w.Dialect])
	first := w.first(t, change("back", 2, ""))
	purged := int64(-1)
	purge := func() error {
		return w.Try(w.Context(), func(ctx context.Context, db driver.SQL) (err error) {
			purged, err = t.Purge(ctx, db, time.Minute, 0)
			return err
		})
	}
	if w.Dialect == driver.Postgres { // it does not even wait
		ok(w.T, testbed.Later(w.T, bound, purge)())
		ok(w.T, first.Commit(w.Context()))
	} else {
		second := w.behind(purge)
		ok(w.T, first.Commit(w.Context()))
		ok(w.T, second())
	}
	if s := w.state("back"); purged != 0 || s.Stamp.Version != 2 || s.Deleted {
		w.Errorf("purged %d, and %+v is left", purged, s)
	}
}

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
