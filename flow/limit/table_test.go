package limit_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/testbed"
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

// TestTableWaits: a request that has waited for the row of one limit decides the others by the time
// after the wait. By an earlier time, consumption of the others would drain twice.
func TestTableWaits(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, limit.Table{}.Create)
		late, other := limit.FromTable(db, limit.Table{}), limit.FromTable(db.Again(t), limit.Table{})
		call := func(key string, cost int64) driver.LimitCall {
			return driver.LimitCall{{Key: key, Rate: limit.PerHour(10), Cost: cost}}
		}
		both := []driver.LimitCall{call("a", 1), call("b", 1)}
		for _, x := range late.Take(t.Context(), both) {
			ok(t, x.Err)
		}
		holder, begun := db.Begun(t, driver.ReadCommitted), time.Now()
		_, err := databases.Value[string](t.Context(), holder.Native(), `select name from interlock_limit where name = 'a' for update`)
		ok(t, err)
		done := make(chan []driver.LimitAnswer, 1)
		go func() { done <- late.Take(t.Context(), both) }()
		testbed.Eventually(t, "the request waits for a, longer than clocks may differ", time.Minute, func() bool {
			return db.Waiting(t) > 0 && time.Since(begun) > 1500*time.Millisecond
		})
		if x := other.Take(t.Context(), []driver.LimitCall{call("b", 9)})[0]; !x.Allowed() {
			t.Fatalf("%+v", x)
		}
		at := func() time.Time {
			s, err := other.(driver.LimitInspector).Limit(t.Context(), "b")
			ok(t, err)
			return s.State.Time()
		}
		before := at()
		ok(t, holder.Rollback(t.Context()))
		for i, x := range <-done {
			if x.Err != nil || x.Allowed() != (i == 0) {
				t.Errorf("call %d: %+v", i, x)
			}
		}
		if after := at(); after.Before(before) {
			t.Errorf("the limit continues from %v before its last admission", before.Sub(after))
		}
	}, databases.All...)
}

// TestTableStopped: a process that is stopped while it has locked a limit does not block others for longer
// than a few seconds.
func TestTableStopped(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, limit.Table{}.Create)
		calls := []driver.LimitCall{{{Key: "k", Rate: limit.PerHour(10), Cost: 1}}}
		s := stopped{BeginnerAt: db.Again(t), locked: make(chan struct{}), goOn: make(chan struct{})}
		other := limit.FromTable(db, limit.Table{})
		ok(t, other.Take(t.Context(), calls)[0].Err)
		done := make(chan driver.LimitAnswer, 1)
		go func() { done <- limit.FromTable(s, limit.Table{}).Take(t.Context(), calls)[0] }()
		<-s.locked
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if x := other.Take(ctx, calls)[0]; !x.Allowed() || x.Decisions[0].Remaining != 8 {
			t.Errorf("another process: %+v", x)
		}
		close(s.goOn)
		if x := <-done; interlock.Kind(x.Err) != interlock.Retryable {
			t.Errorf("the stopped process: %+v", x)
		}
	})
}

// TestTableTrims: expired rows are deleted as fast as keys are used for the first time, and rows that
// count stay.
func TestTableTrims(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, limit.Table{}.Create)
		store := limit.FromTable(db, limit.Table{})
		take := func() {
			if x := store.Take(t.Context(), []driver.LimitCall{{{Key: "user/9", Rate: limit.PerHour(10), Cost: 1}}})[0]; x.Err != nil {
				t.Fatal(x.Err)
			}
		}
		take()
		var rows strings.Builder
		for i := range 3000 {
			until := "1" // 1970
			if i%1000 == 500 {
				until = "9000000000000000"
			}
			fmt.Fprintf(&rows, ", ('user/%04d', '0 1 1 1', %s)", i, until)
		}
		db.Exec(t, `insert into interlock_limit (name, state, until_us) values `+rows.String()[2:])
		limit.TrimNow(store)
		testbed.Eventually(t, "expired rows are deleted, and no others", 30*time.Second, func() bool {
			take()
			return databases.One[int](t, db, `select count(*) from interlock_limit`) == 4
		})
	})
}

// stopped is a database in a process that is stopped after its first lock.
type stopped struct {
	driver.BeginnerAt[driver.SQL]
	locked, goOn chan struct{}
}

func (s stopped) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := s.BeginnerAt.BeginAt(ctx, level)
	return stoppedTx{tx, s, new(sync.Once)}, err
}

type stoppedTx struct {
	driver.Tx[driver.SQL]
	at   stopped
	once *sync.Once
}

func (t stoppedTx) Native() driver.SQL { return t }

func (t stoppedTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	err := t.Tx.Query(ctx, query, args, each)
	if strings.Contains(query, "for update") {
		t.once.Do(func() {
			close(t.at.locked)
			<-t.at.goOn
		})
	}
	return err
}
