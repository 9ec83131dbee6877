package limit_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestTable runs the suite of limits on every database.
func TestTable(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		drivertest.RunLimiter(t, drivertest.LimiterHarness{
			Start: func(t *testing.T, _ bool) drivertest.LimiterBackend {
				db := open(t)
				db.Do(t, limit.Table{}.Create)
				return inDB{db}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		})
	})
}

// inDB is the limits of a database.
type inDB struct{ db *databases.DB }

func (d inDB) Open(t *testing.T) (driver.Limiter, error) {
	return limit.FromTable(d.db.Again(t), limit.Table{}), nil
}

func (d inDB) Beside(t *testing.T) (driver.Limiter, error) { return d.Open(t) }

func (d inDB) Damage(t *testing.T, key, text string) {
	d.db.Exec(t, fmt.Sprintf(`update interlock_limit set state = concat_ws(' ', '%s') where name = '%s'`, text, key))
}

func (d inDB) Faults() drivertest.Faults { return nil }

// TestTableOpens: a URL of a database creates the table.
func TestTableOpens(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		l, err := limit.Open(t.Context(), db.URL, nil)
		ok(t, err)
		defer l.Close(t.Context())
		for i := range 3 {
			if d, err := l.Allow(t.Context(), "k", limit.PerHour(2)); err != nil || d.Allowed != (i < 2) {
				t.Errorf("call %d: %+v, %v", i, d, err)
			}
		}
		if rows := databases.One[string](t, db, `select string_agg(name, ',') from interlock_limit`); rows != "k" {
			t.Errorf("rows %s", rows)
		}
	}, databases.Pgx)
}

// TestTableLists: keys of a prefix are listed whatever the collation of the database.
func TestTableLists(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		if db.Dialect == driver.Postgres {
			db = db.Collated(t)
		}
		db.Do(t, limit.Table{}.Create)
		store := limit.FromTable(db, limit.Table{Prefix: "p:"})
		l, err := limit.New(store, nil)
		ok(t, err)
		for _, key := range []string{"a/1", "a1", "A/1", "a/2", "a%", "a", "b", "a/_", "a/Z"} {
			_, err := l.Allow(t.Context(), key, limit.PerHour(10))
			ok(t, err)
		}
		for _, c := range []struct {
			prefix string
			limit  int
			want   string
		}{
			{"a/", 9, "[a/1 a/2 a/Z a/_] false"}, {"a/", 2, "[a/1 a/2] true"}, {"a%", 1, "[a%] false"}, {"_", 1, "[] false"},
			{"", math.MaxInt, "[A/1 a a% a/1 a/2 a/Z a/_ a1 b] false"},
		} {
			all, more, err := store.(driver.LimitInspector).Limits(t.Context(), c.prefix, c.limit)
			ok(t, err)
			var keys []string
			for _, s := range all {
				keys = append(keys, s.Key)
			}
			if got := fmt.Sprint(keys, more); got != c.want {
				t.Errorf("prefix %q, limit %d: %s, want %s", c.prefix, c.limit, got, c.want)
			}
		}
	})
}
