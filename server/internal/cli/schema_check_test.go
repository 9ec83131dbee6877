package cli

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/guard/stock"
	versions "github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// Every missing, older or newer table of the schema is found, and the error names the
// command that prints it.
func TestEveryTableIsChecked(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		for _, p := range backend.Parts {
			var together sync.WaitGroup
			for range 4 { // CREATE … IF NOT EXISTS alone could fail
				own := *db
				own.BeginnerAt = db.Again(t)
				together.Go(func() {
					if err := own.Try(t.Context(), p.Create); err != nil {
						t.Errorf("%s, created by four at once: %v", p.Name, err)
					}
				})
			}
			together.Wait()
			check := func() (bad *driver.TableError) {
				t.Helper()
				err := db.Try(t.Context(), func(ctx context.Context, s driver.SQL) error { return driver.CheckTables(ctx, s, p.Name, p.Creator) })
				if err != nil && (!errors.As(err, &bad) || !strings.Contains(err.Error(), "--only "+p.Name) || interlock.Kind(err) != interlock.Definite) {
					t.Fatalf("%s: %v", p.Name, err)
				}
				return bad
			}
			if bad := check(); bad != nil {
				t.Errorf("%s as it was created: %v", p.Name, bad)
			}
			for table, column := range tablesOf(t, db, p.Creator) {
				db.Exec(t, "alter table "+table+" rename column "+column+" to renamed")
				if bad := check(); bad == nil || bad.Table != table || strings.Join(bad.Missing, ",") != column || strings.Join(bad.Unknown, ",") != "renamed" {
					t.Errorf("%s without %s: %+v", table, column, bad)
				}
				db.Exec(t, "drop table "+table)
				if bad := check(); bad == nil || bad.Table != table || len(bad.Missing)+len(bad.Unknown) > 0 {
					t.Errorf("%s, which was dropped: %+v", table, bad)
				}
				db.Do(t, p.Create)
			}
		}
	}, databases.Pgx, databases.Maria)
}

// TestCreationDoesNotWait: a service that starts creates its tables. If they exist, that does not wait for
// transactions that have written to them, so that later writers do not wait for it.
func TestCreationDoesNotWait(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		impatient, closed, err := databases.Connect(t.Context(), db.Client, databases.With(db.URL,
			map[driver.Dialect]string{driver.Postgres: "lock_timeout=1000", driver.MariaDB: "lock_wait_timeout=1"}[db.Dialect]))
		testbed.OK(t, err)
		t.Cleanup(closed)
		for _, p := range backend.Parts {
			db.Do(t, p.Create)
			writer := db.Begun(t, driver.SessionIsolation)
			for table := range tablesOf(t, db, p.Creator) {
				_, err := writer.Exec(t.Context(), "delete from "+table+" where 1 = 0")
				testbed.OK(t, err)
			}
			if err := driver.Create(t.Context(), impatient, p); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
			testbed.OK(t, writer.Rollback(t.Context()))
		}
	}, databases.Pgx, databases.Maria)
}

// backendGiven returns the parts whose tables can have other names.
func backendGiven(name string) map[string]driver.Creator {
	return map[string]driver.Creator{
		"fence": fence.Table{Name: name}, "version": versions.Table{Name: name}, "stock": stock.Table{Name: name}, "once": once.Inbox{Name: name, Consumer: "c"},
		"idempotency": idempotency.Table{Name: name}, "sequence": sequence.Table{Name: name}, "outbox": outbox.Table{Name: name},
		"journal": journal.NewTable[struct{}](nil, name), "barrier": barrier.Table{Name: name}, "tcc": tcc.Table{Name: name},
		"semanticlock": countermeasure.SemanticLock{Name: name}, "byvalue": countermeasure.ByValue{Name: name},
		"versionfile": countermeasure.VersionFile{Name: name},
	}
}

// Tables may have any valid name, in any schema, and be created again; an invalid or too
// long name is a Bug.
func TestTablesMayHaveAnyName(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		schema := "Odd schema"
		if db.Dialect == driver.MariaDB {
			schema = databases.One[string](t, db, "select database()")
		} else {
			db.Exec(t, `create schema "Odd schema"`)
		}
		for part := range backendGiven("") {
			for _, name := range []string{part + "? {now} it's", strings.ToUpper(part), schema + ".In\"`" + part} {
				c := backendGiven(name)[part]
				for range 2 {
					if err := db.Try(t.Context(), c.Create); err != nil {
						t.Errorf("%s as %s: %v", part, name, err)
					}
				}
				if err := db.Try(t.Context(), func(ctx context.Context, s driver.SQL) error { return driver.CheckTables(ctx, s, part, c) }); err != nil {
					t.Errorf("%s as %s: %v", part, name, err)
				}
			}
			n, long := 65, func(n int) driver.Creator { return backendGiven(strings.Repeat(part, n)[:n])[part] }
			for ; n > 40; n-- {
				if _, err := driver.Statements(db.Dialect, long(n)); err == nil {
					break
				} else if !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
					t.Errorf("%s with %d bytes: %v", part, n, err)
				}
			}
			if err := db.Try(t.Context(), long(n).Create); err != nil || n == 65 {
				t.Errorf("%s with %d bytes: %v", part, n, err)
			}
			for _, bad := range []string{"a.b.c", ".", "a.", ".a", "a\x00"} {
				if _, err := driver.Statements(db.Dialect, backendGiven(bad)[part]); !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
					t.Errorf("%s as %q: %v", part, bad, err)
				}
			}
		}
	}, databases.Pgx, databases.Maria)
}

// tablesOf returns the tables of a part, each with its last column.
func tablesOf(t *testing.T, db *databases.DB, c driver.Creator) map[string]string {
	statements, err := driver.Statements(db.Dialect, c)
	testbed.OK(t, err)
	tables := map[string]string{}
	for _, s := range statements {
		m := created.FindStringSubmatch(s)
		if m == nil || !strings.EqualFold(m[1], "table") {
			continue
		}
		schema := map[driver.Dialect]string{driver.Postgres: "current_schema()", driver.MariaDB: "database()"}[db.Dialect]
		tables[m[2]] = databases.One[string](t, db, `select column_name from information_schema.columns where table_schema = `+schema+
			` and table_name = '`+strings.Trim(m[2], "\"`")+`' order by ordinal_position desc limit 1`)
	}
	if len(tables) == 0 {
		t.Fatalf("no tables in %q", statements)
	}
	return tables
}

// Open reports a wrong table, and a statement without Open names the same command.
func TestOpenersCheckTheirTables(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		j := journal.NewTable(db, "")
		for _, c := range []driver.Creator{j, fence.Table{}, outbox.Table{}} {
			db.Do(t, c.Create)
		}
		db.Exec(t, "alter table interlock_journal_head rename column began to renamed",
			"alter table interlock_outbox_dead rename column topic to renamed", "alter table interlock_fence rename column source to renamed")
		var bad *driver.TableError
		if _, err := j.Shards(t.Context(), 0, 0); !errors.As(err, &bad) || codeOf(err) != exitConfig {
			t.Errorf("the journal: %v", err)
		}
		db.Exec(t, "alter table interlock_journal_head rename column renamed to began", "alter table interlock_journal_head add column newer int")
		if _, err := j.Shards(t.Context(), 0, 0); !errors.As(err, &bad) || len(bad.Missing) > 0 || strings.Join(bad.Unknown, ",") != "newer" {
			t.Errorf("the journal, newer: %v", err)
		}
		relay, err := outbox.NewRelay(db, outbox.Table{}, nowhere{}, nil)
		testbed.OK(t, err)
		if _, err := relay.Slices(t.Context()); !errors.As(err, &bad) || !strings.Contains(err.Error(), "--only outbox") {
			t.Errorf("a relay: %v", err)
		}
		token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
		testbed.OK(t, err)
		err = db.Try(t.Context(), func(ctx context.Context, s driver.SQL) error { return fence.Table{}.Enter(ctx, s, "r", token, "me") })
		if interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "--only fence") {
			t.Errorf("the fence: %v", err)
		}
		db.Exec(t, "alter table interlock_fence rename column renamed to source", "alter table interlock_fence add column newer int not null")
		err = db.Try(t.Context(), func(ctx context.Context, s driver.SQL) error { return fence.Table{}.Enter(ctx, s, "r", token, "me") })
		if interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "--only fence") {
			t.Errorf("the fence, newer: %v", err)
		}
	}, databases.Pgx, databases.Maria)
}

type nowhere struct{ driver.Sink }
