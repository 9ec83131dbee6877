package sqltable_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var layout = sqltable.Layout{Part: "box", Default: "interlock_box",
	Tables: map[string]string{"boxes": "", "lids": "_lid"}, Indexes: map[string]string{"due": "_due"}}

// spoken is a database of a dialect without any operation.
type spoken struct {
	driver.SQL
	dialect driver.Dialect
}

func (s spoken) Dialect() driver.Dialect { return s.dialect }

func TestText(t *testing.T) {
	for _, c := range []struct{ template, postgres, maria string }{
		{`? and ?`, `$1 and $2`, `? and ?`},
		{strings.Repeat(`?,`, 10) + `?`, `$1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11`, strings.Repeat(`?,`, 10) + `?`},
		{`'?' "?" {boxes} '{boxes}' ?`, `'?' "?" "a?"."b{now}" '{boxes}' $1`, "'?' \"?\" `a?`.`b{now}` '{boxes}' ?"},
		{`{lids} {due}`, `"a?"."b{now}_lid" "b{now}_due"`, "`a?`.`b{now}_lid` `b{now}_due`"},
		{`? {now} - {span} ?`, `$1 clock_timestamp() - $2::bigint * interval '1 microsecond' $3`, `? utc_timestamp(6) - interval ? microsecond ?`},
		{`{micros now} {micros put_at}`, `(extract(epoch from clock_timestamp()) * 1000000)::bigint (extract(epoch from put_at) * 1000000)::bigint`,
			`timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) timestampdiff(microsecond, '1970-01-01', put_at)`},
		{`{pg a ? {now}}{maria b}`, `a $1 clock_timestamp()`, `b`},
		{`{or id, n} n = {old n} + {new n}, x = {?}`, `on conflict (id, n) do update set n = present.n + excluded.n, x = $1`,
			`on duplicate key update n = n + values(n), x = coalesce(?, x'')`},
		{`{what} is not known`, `{what} is not known`, `{what} is not known`},
		{`it's`, `it's`, `it's`},
	} {
		for d, want := range map[driver.Dialect]string{driver.Postgres: c.postgres, driver.MariaDB: c.maria} {
			s, err := layout.Open("put", "box", spoken{dialect: d}, "a?.b{now}")
			testbed.OK(t, err)
			if got := s.Text(c.template); got != want {
				t.Errorf("%s: %q is\n%s\nnot\n%s", d, c.template, got, want)
			}
		}
	}
}

// TestTextsAreKept requires that the second use of a table and of a template uses the cache.
// Definitions of one use must not affect others.
func TestTextsAreKept(t *testing.T) {
	db := spoken{dialect: driver.Postgres}
	open := func() sqltable.Tables {
		s, err := layout.Open("put", "box", db, "")
		testbed.OK(t, err)
		return s
	}
	if n := testing.AllocsPerRun(100, func() { open().Text(`select {now} from {boxes}, {lids} where id = ?`) }); n > 4 {
		t.Errorf("%v allocations", n)
	}
	s := open()
	s.Define("x", "1")
	if s.Text(`{x}`) != `1` || open().Text(`{x}`) != `{x}` {
		t.Error("a definition for some tables affects others")
	}
	for i := range 1000 {
		open().Text(fmt.Sprintf(`select %d from {boxes}`, i))
	}
	if text := open().Text(`select 7 from {boxes}`); text != `select 7 from "interlock_box"` {
		t.Error(text)
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	for name, db := range map[string]driver.SQL{"box": nil, "a.b.c": spoken{dialect: driver.Postgres}, "": spoken{dialect: "oracle"}} {
		if _, err := layout.Open("put", "box", db, name); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestDelete: the first rows up to the limit are deleted; with a key of several columns
// only those that meet the condition. On PostgreSQL locked rows do not block others.
func TestDelete(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		begin := func() (driver.Tx[driver.SQL], sqltable.Tables) {
			tx := db.Begun(t, driver.SessionIsolation)
			s, err := layout.Open("sweep", "box", tx, "")
			testbed.OK(t, err)
			return tx, s
		}
		commit := func(tx driver.Tx[driver.SQL], err error) {
			t.Helper()
			if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		tx, s := begin()
		_, err := s.Row(t.Context(), `select n from {boxes}`, nil, new(int))
		if err == nil || !strings.Contains(err.Error(), "--only box") {
			t.Errorf("a missing table: %v", err)
		}
		_ = tx.Rollback(context.Background())
		tx, s = begin()
		err = s.Create(t.Context(), `create table if not exists {boxes} (id {name 20} not null, n bigint not null, age bigint not null, primary key (id, n)){engine}`)
		for _, id := range []string{"a", "b"} {
			for n := range 300 {
				if err == nil {
					_, err = s.Exec(t.Context(), `insert into {boxes} (id, n, age) values (?, ?, ?)`, id, n, n)
				}
			}
		}
		commit(tx, err)
		tx, s = begin()
		deleted, err := s.Delete(t.Context(), sqltable.Deletion{Table: "boxes", Key: "id, n", Where: `id = ? and age < ?`, Args: []any{"a", 290}, Order: "age", Limit: 250})
		left, failed := sqltable.Column[int64](t.Context(), s, `select n from {boxes} where id = ? order by n`, "a")
		commit(tx, errors.Join(err, failed))
		if deleted != 250 || len(left) != 50 || !slices.Contains(left, 250) {
			t.Errorf("%d rows were deleted, %v are left", deleted, left)
		}
		tx, s = begin()
		_, err = s.Exec(t.Context(), `{pg select 1}{maria set sql_mode = 'STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL'}`)
		_, failed = s.Exec(t.Context(), `insert into {boxes} (id, n, age) values ({?}, 1, 1)`, "")
		deleted, problem := s.Delete(t.Context(), sqltable.Deletion{Table: "boxes", Key: "id, n", Where: `id < ?`, Args: []any{"a"}, Limit: 10})
		commit(tx, errors.Join(err, failed, problem))
		if deleted != 1 {
			t.Errorf("%d rows with an empty text were deleted", deleted)
		}
	}, databases.All...)
}

// creator is a function that creates tables.
type creator func(ctx context.Context, db driver.SQL) error

func (c creator) Create(ctx context.Context, db driver.SQL) error { return c(ctx, db) }

// TestCreateInAnyOrder: transactions that create the same tables in different orders do not deadlock.
func TestCreateInAnyOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		crates := sqltable.Layout{Part: "crate", Default: "interlock_crate", Tables: map[string]string{"boxes": ""}}
		create := func(l *sqltable.Layout) creator {
			return func(ctx context.Context, db driver.SQL) error {
				s, err := l.Open("create", "", db, "")
				if err != nil {
					return err
				}
				return s.Create(ctx, `create table if not exists {boxes} (id int not null primary key){engine}`)
			}
		}
		var met atomic.Int64
		both := make(chan struct{})
		gate := creator(func(context.Context, driver.SQL) error { met.Add(1); <-both; return nil })
		created := make(chan error, 2)
		for _, order := range [][]driver.Creator{{create(&layout), gate, create(&crates)}, {create(&crates), gate, create(&layout)}} {
			go func() { created <- driver.Create(t.Context(), db.BeginnerAt, order...) }()
		}
		testbed.Eventually(t, "each has created a table, or waits for the other", testbed.Patience, func() bool {
			return met.Load() == 2 || met.Load() == 1 && db.Waiting(t) > 0
		})
		close(both)
		for range 2 {
			testbed.OK(t, testbed.Receive(t, created, "the tables"))
		}
	})
}

// TestCheckTablesOfAnyName finds tables whose names have a quote, a backslash or a space.
func TestCheckTablesOfAnyName(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		tx := open(t).Begun(t, driver.SessionIsolation)
		if tx.Dialect() == driver.MariaDB {
			_, err := tx.Exec(t.Context(), `set sql_mode = 'STRICT_TRANS_TABLES'`)
			testbed.OK(t, err)
		}
		for _, name := range []string{`it's`, `a\b`, `c d`} {
			create := creator(func(ctx context.Context, db driver.SQL) error {
				s, err := layout.Open("create", "", db, name)
				if err != nil {
					return err
				}
				return s.Create(ctx, `create table if not exists {boxes} (id int not null primary key){engine}`)
			})
			testbed.OK(t, create(t.Context(), tx))
			if err := driver.CheckTables(t.Context(), tx, "box", create); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestIdentifier(t *testing.T) {
	for _, c := range []struct {
		dialect      driver.Dialect
		name, suffix string
		want         string
	}{
		{driver.Postgres, "account", "", `"account"`},
		{driver.Postgres, "bank.Account", "_marks", `"bank"."Account_marks"`},
		{driver.Postgres, `a"b`, "", `"a""b"`},
		{driver.MariaDB, "a`b; drop table x", "", "`a``b; drop table x`"},
		{driver.MariaDB, "bank.account", "", "`bank`.`account`"},
		{driver.Postgres, strings.Repeat("x", 63), "", `"` + strings.Repeat("x", 63) + `"`},
	} {
		got, err := sqltable.Identifier(c.dialect, c.name, c.suffix)
		if err != nil || got != c.want {
			t.Errorf("%s %q: %s, %v; want %s", c.dialect, c.name, got, err, c.want)
		}
	}
}

func TestWhatIsNoIdentifier(t *testing.T) {
	for _, name := range []string{"", "a.", ".a", "a.b.c", "a\x00b", strings.Repeat("x", 65)} {
		for _, d := range []driver.Dialect{driver.Postgres, driver.MariaDB} {
			_, err := sqltable.Identifier(d, name, "")
			if !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s %q: %v", d, name, err)
			}
		}
	}
	if _, err := sqltable.Identifier("oracle", "a", ""); interlock.Kind(err) != interlock.Bug {
		t.Errorf("an unknown dialect: %v", err)
	}
}
