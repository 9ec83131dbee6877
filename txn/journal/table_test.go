package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestTable(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		drivertest.RunJournal(t, drivertest.JournalHarness{
			Start: func(t *testing.T, exclusive bool) drivertest.JournalBackend {
				db := open(t)
				if exclusive {
					db = databases.Open(t, server(t, db.Dialect), db.Client)
				}
				db.Do(t, journal.NewTable(db, "").Create)
				return ledger{db}
			},
			Without: drivertest.LostReplies, // a statement without an answer ends its transaction: see TestLostCommit
		})
	}, databases.Pgx, databases.MariaInlined) // pgx sends arrays in binary; other tests of groups have them as text
}

func server(t *testing.T, d driver.Dialect) *testbed.Server {
	if d == driver.MariaDB {
		return testbed.MariaDB(t)
	}
	return testbed.Postgres(t)
}

// ledger is a journal in a database.
type ledger struct{ *databases.DB }

func (l ledger) Open(t *testing.T) (driver.Journal, error) {
	return journal.NewTable(l.Again(t), ""), nil
}

func (l ledger) Beside(t *testing.T) (driver.Journal, error) { return l.Open(t) }

func (l ledger) Faults() drivertest.Faults { return uncut{l.Server} }

// uncut breaks a server, and no path to it.
type uncut struct{ *testbed.Server }

func (uncut) Cut() {}

func (uncut) Heal() {}

// watched counts the entries that its queries read.
type watched struct {
	driver.BeginnerAt[driver.SQL]
	statements, entries int    // entries of an index, on MariaDB rows as well
	plan                string // of Postgres
}

func (w *watched) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := w.BeginnerAt.BeginAt(ctx, level)
	return watchedTx{tx, w}, err
}

type watchedTx struct {
	driver.Tx[driver.SQL]
	w *watched
}

func (t watchedTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	t.w.statements++
	if t.Dialect() == driver.Postgres {
		return errors.Join(t.Tx.Query(ctx, query, args, each), t.explain(ctx, query, args))
	}
	// A notification counts as a read entry, too.
	first, err := t.handled(ctx)
	before, err2 := t.handled(ctx)
	err = errors.Join(err, err2, t.Tx.Query(ctx, query, args, each))
	after, err2 := t.handled(ctx)
	t.w.entries += (after - before) - (before - first)
	return errors.Join(err, err2)
}

// handled returns how many entries the session has read on MariaDB.
func (t watchedTx) handled(ctx context.Context) (int, error) {
	return databases.Value[int](ctx, t.Tx, `select cast(sum(variable_value) as signed) from information_schema.session_status
		where variable_name like 'HANDLER_READ_%'`)
}

var scanned = regexp.MustCompile(`Index.* Scan .*rows=([0-9.]+) loops=([0-9]+)`)

// explain runs the query again on Postgres, with EXPLAIN.
func (t watchedTx) explain(ctx context.Context, query string, args []any) error {
	return t.Tx.Query(ctx, `explain (analyze, timing off) `+query, args, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		t.w.plan += line + "\n"
		if m := scanned.FindStringSubmatch(line); m != nil {
			rows, err2 := strconv.ParseFloat(m[1], 64)
			loops, err3 := strconv.Atoi(m[2])
			err = errors.Join(err, err2, err3)
			t.w.entries += int(math.Ceil(rows)) * loops
		}
		return err
	})
}

// TestDueShardsProbes: due and ended transactions cost nothing: each shard is one read of
// the index, and all of them are one statement.
func TestDueShardsProbes(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		watch := &watched{BeginnerAt: db}
		table := journal.NewTable[driver.SQL](watch, "")
		db.Do(t, table.Create)
		const shards, each = 64, 40
		var all []int
		var begins, moved []driver.Append
		for i := range shards * each {
			a := driver.Append{Transaction: fmt.Sprint("t", i), Shard: i % shards, Records: []driver.Record{{Kind: "x"}}, Due: due}
			begins = append(begins, a)
			if i < shards {
				all = append(all, i)
			}
			switch a.After = 1; {
			case i/shards%2 == 0: // half of all have ended
				a.Due = time.Time{}
				moved = append(moved, a)
			case i%2 == 1: // odd shards are due later
				a.Due = due.Add(time.Hour)
				moved = append(moved, a)
			}
		}
		ok(t, errors.Join(append(table.Append(t.Context(), begins), table.Append(t.Context(), moved)...)...))
		for _, by := range []time.Time{due.Add(-time.Second), due, due.Add(time.Hour)} {
			*watch = watched{BeginnerAt: db}
			got, err := table.DueShards(t.Context(), all, by)
			ok(t, err)
			var want []int
			for i := range shards {
				if !due.After(by) && (i%2 == 0 || !due.Add(time.Hour).After(by)) {
					want = append(want, i)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("due shards: %v, want %v", got, want)
			}
			if watch.statements != 1 || watch.entries > 2*shards || strings.Contains(watch.plan, "Seq Scan") {
				t.Errorf("%d statements looked at %d entries, by %v\n%s", watch.statements, watch.entries, by, watch.plan)
			}
		}
	}, databases.Pgx, databases.Maria)
}
