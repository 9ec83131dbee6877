package journal_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
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

// groupOf returns an append to each of n transactions.
func groupOf(n int, after int64) []driver.Append {
	var group []driver.Append
	for i := range n {
		group = append(group, driver.Append{Transaction: fmt.Sprintf("t%03d", i), Epoch: token(1), After: after, Records: []driver.Record{{Kind: "x"}}, Due: due})
	}
	return group
}

// TestGroupIsFoundByIndex, also if the database expects a small table.
func TestGroupIsFoundByIndex(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		watch := &watched{BeginnerAt: db}
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		ok(t, table.Enter(t.Context(), 0, token(1)))
		ok(t, errors.Join(table.Append(t.Context(), groupOf(200, 0))...))
		ok(t, errors.Join(journal.NewTable[driver.SQL](watch, "").Append(t.Context(), groupOf(32, 1))...))
		if watch.statements != 1 || strings.Contains(watch.plan, "Seq Scan on interlock_journal_head") || !strings.Contains(watch.plan, "interlock_journal_head") {
			t.Errorf("%d queries:\n%s", watch.statements, watch.plan)
		}
	}, databases.Pgx)
}

// TestAppendChangesNoIndex if it keeps the due time: PostgreSQL updates such a head in place.
func TestAppendChangesNoIndex(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		ok(t, table.Enter(t.Context(), 0, token(1)))
		tx := db.Begun(t, driver.ReadCommitted)
		for after, want := range []int64{0, 1, 1} {
			a := groupOf(1, int64(after))[0]
			if after == 2 {
				a.Due = due.Add(time.Minute)
			}
			ok(t, table.AppendIn(t.Context(), tx, a))
			hot, err := databases.Value[int64](t.Context(), tx, `select pg_stat_get_xact_tuples_hot_updated('interlock_journal_head'::regclass)`)
			if err != nil || hot != want {
				t.Errorf("%d updates in place after append %d, want %d: %v", hot, after, want, err)
			}
		}
	}, databases.Pgx)
}

// TestRowsStayInTheTable: PostgreSQL moves no row of up to 8 kB elsewhere.
func TestRowsStayInTheTable(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		ok(t, table.Enter(t.Context(), 0, token(1)))
		a := groupOf(1, 0)[0]
		for range 3 {
			data := make([]byte, 2600)
			_, _ = rand.Read(data)
			a.Records = append(a.Records, driver.Record{Kind: "x", Data: data})
		}
		ok(t, table.Append(t.Context(), []driver.Append{a})[0])
		txntest.Equal(t, "bytes are elsewhere", databases.One[int64](t, db, `select pg_relation_size(reltoastrelid) from pg_class where oid = 'interlock_journal'::regclass`), 0)
	}, databases.Pgx)
}

// TestGroupsCompete: if groups share transactions, in any order, one of them appends to
// each. They do not wait for each other. Appends are refused once a new owner has
// entered.
func TestGroupsCompete(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		db := open(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		ok(t, table.Enter(t.Context(), 0, token(1)))
		const size, appenders, rounds = 20, 4, 25
		ok(t, errors.Join(table.Append(t.Context(), groupOf(size, 0))...))
		for round := int64(1); round <= rounds; round++ {
			var mu sync.Mutex
			did := map[string]int{}
			var late int // appends that met the next owner
			var work sync.WaitGroup
			for i := range appenders {
				group := groupOf(size, round)[i : size-appenders+1+i]
				if i%2 == 1 {
					slices.Reverse(group)
				}
				work.Go(func() {
					for k, err := range table.Append(t.Context(), group) {
						var elsewhere *driver.PositionError
						mu.Lock()
						switch {
						case err == nil:
							did[group[k].Transaction]++
						case errors.Is(err, interlock.ErrStaleToken), round == rounds && errors.Is(err, interlock.ErrHeld):
							late++
						case errors.Is(err, interlock.ErrHeld):
						case !errors.As(err, &elsewhere) || elsewhere.Found.Position != round+1:
							t.Errorf("round %d: %v", round, err)
						}
						mu.Unlock()
					}
				})
			}
			if round == rounds {
				work.Go(func() {
					if err := table.Enter(t.Context(), 0, token(2)); err != nil {
						t.Errorf("enter: %v", err)
					}
				})
			}
			work.Wait()
			for i, a := range groupOf(size, round) {
				head, records, err := table.Read(t.Context(), a.Transaction, 0)
				if err != nil || did[a.Transaction] != int(head.Position-round) || len(records) != int(head.Position) || late == 0 && did[a.Transaction] != 1 {
					t.Fatalf("round %d: %d groups have done the append to %d, which is at %d with %d records: %v", round, did[a.Transaction], i, head.Position, len(records), err)
				}
			}
		}
		if errs := table.Append(t.Context(), groupOf(1, rounds+1)); !errors.Is(errs[0], interlock.ErrStaleToken) {
			t.Errorf("after the next one has entered: %v", errs[0])
		}
	})
}

// TestGroupsBeginInAnyOrder: if two groups begin the same transactions in opposite orders, one
// of them begins each.
func TestGroupsBeginInAnyOrder(t *testing.T) {
	eachTable(t, func(t *testing.T, _ *databases.DB, table *journal.Table[driver.SQL]) {
		ok(t, table.Enter(t.Context(), 0, token(1)))
		const size = 50
		for round := range 20 {
			var errs [2][]error
			var work sync.WaitGroup
			for i := range errs {
				group := groupOf(size, 0)
				for k := range group {
					group[k].Transaction += fmt.Sprint(" of round ", round)
				}
				if i == 1 {
					slices.Reverse(group)
				}
				work.Go(func() { errs[i] = table.Append(t.Context(), group) })
			}
			work.Wait()
			for k := range size {
				if one, other := errs[0][k], errs[1][size-1-k]; (one == nil) == (other == nil) {
					t.Fatalf("round %d, transaction %d: not exactly one group has begun it: %v; %v", round, k, one, other)
				}
			}
		}
	})
}

// TestAppendInOfAnOldSnapshot: a user's transaction with an old snapshot does not overwrite
// later appends.
func TestAppendInOfAnOldSnapshot(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		ok(t, table.Enter(t.Context(), 0, token(1)))
		ok(t, table.Append(t.Context(), groupOf(1, 0))[0])
		tx := db.Begun(t, driver.RepeatableRead)
		if n, err := databases.Value[int64](t.Context(), tx, `select count(*) from interlock_journal_head`); n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		ok(t, table.Append(t.Context(), groupOf(1, 1))[0])
		err := table.AppendIn(t.Context(), tx, groupOf(1, 1)[0])
		var elsewhere *driver.PositionError
		if refused := errors.As(err, &elsewhere) && elsewhere.Found.Position == 2; !refused && interlock.Kind(err) != interlock.Retryable {
			t.Errorf("after the state of the snapshot: %v", err)
		}
		ok(t, tx.Rollback(t.Context()))
		head, records, err := table.Read(t.Context(), "t000", 0)
		if err != nil || head.Position != 2 || len(records) != 2 {
			t.Errorf("at %d with %d records: %v", head.Position, len(records), err)
		}
	})
}

// speechless is a database that reads no heads: it answers neither why an append was refused.
type speechless struct {
	driver.BeginnerAt[driver.SQL]
	driver.Autocommitter
}

func (s speechless) Autocommit(level driver.Isolation) driver.SQL {
	return noHeads{s.Autocommitter.Autocommit(level)}
}

type noHeads struct{ driver.SQL }

func (n noHeads) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	if strings.HasPrefix(query, "select id, shard") {
		return &interlock.Error{Op: "run statement", Driver: "postgres", Kind: interlock.Retryable, Err: errors.New("no connection")}
	}
	return n.SQL.Query(ctx, query, args, each)
}

// TestUnexplainedRefusal: if the reason of a refusal cannot be read, the rest of the group is done
// nevertheless, and its appends succeed.
func TestUnexplainedRefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		single, ok := db.BeginnerAt.(driver.Autocommitter)
		if !ok {
			t.Fatal("it has no statements without a transaction")
		}
		table := journal.NewTable[driver.SQL](speechless{db, single}, "")
		db.Do(t, table.Create)
		txntest.OK(t, table.Enter(t.Context(), 0, token(1)))
		txntest.OK(t, errors.Join(table.Append(t.Context(), groupOf(1, 0))...))
		errs := table.Append(t.Context(), groupOf(2, 0)) // the first one exists
		wantKind(t, errs[0], interlock.Retryable, nil)
		txntest.OK(t, errs[1])
		head, _, err := table.Read(t.Context(), "t001", 0)
		if txntest.OK(t, err); head.Position != 1 {
			t.Errorf("%+v", head)
		}
	}, databases.Pgx)
}
