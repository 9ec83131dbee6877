package databases_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestEach checks that each database belongs to its test. A transaction has the requested level,
// which the next one of the connection does not inherit.
func TestEach(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db, other := open(t), open(t)
		for _, d := range []*databases.DB{db, other} {
			d.Exec(t, `create table only_here (id bigint primary key)`, `insert into only_here (id) values (1000)`)
		}
		byDefault := map[driver.Dialect]bool{driver.Postgres: true}[db.Dialect]
		for _, c := range []struct {
			level driver.Isolation
			sees  bool
		}{{driver.ReadCommitted, true}, {driver.RepeatableRead, false}, {driver.SessionIsolation, byDefault}} {
			if got := seesCommits(t, db, c.level); got != c.sees {
				t.Errorf("%v sees what is committed meanwhile: %v", c.level, got)
			}
		}
		if n := databases.One[int64](t, other, `select count(*) from only_here`); n != 1 {
			t.Errorf("%d rows, want that of this database alone", n)
		}
	}, databases.All...)
}

// seesCommits reports whether a transaction of that level sees a row that another one
// commits after its first query.
func seesCommits(t *testing.T, db *databases.DB, level driver.Isolation) bool {
	t.Helper()
	tx := db.Begun(t, level)
	count := func() int64 {
		n, err := databases.Value[int64](t.Context(), tx.Native(), `select count(*) from only_here`)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	db.Exec(t, fmt.Sprintf(`insert into only_here (id) values (%d)`, before))
	after := count()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return after > before
}

// TestEndOfATestEndsItsTransaction checks that t.Fatal in a transaction leaves no lock.
func TestEndOfATestEndsItsTransaction(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table only_here (id bigint primary key)`)
		ended := make(chan error)
		go func() {
			defer close(ended)
			ended <- db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error {
				_, err := sql.Exec(ctx, `insert into only_here (id) values (1)`)
				if err == nil {
					runtime.Goexit()
				}
				return err
			})
		}()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		db.Exec(t, `insert into only_here (id) values (1)`) // does not block
	}, databases.All...)
}
