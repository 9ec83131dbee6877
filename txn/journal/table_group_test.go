package journal_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
