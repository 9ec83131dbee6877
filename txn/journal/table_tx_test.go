package journal_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestAppendIn: an append in the user's transaction is done if that commits.
func TestAppendIn(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		begin := driver.Append{Transaction: "t", Type: "order", Records: []driver.Record{{Kind: "begin"}}, Due: due}
		changed := errors.New("changed my mind")
		err := db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
			return errors.Join(table.AppendIn(ctx, tx, begin), changed)
		})
		if !errors.Is(err, changed) {
			t.Fatal(err)
		}
		if head, _, err := table.Read(t.Context(), "t", 0); err != nil || head.Position != 0 {
			t.Fatalf("after a rollback: %+v, %v", head, err)
		}
		db.Do(t, func(ctx context.Context, tx driver.SQL) error { return table.AppendIn(ctx, tx, begin) })
		err = db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error { return table.AppendIn(ctx, tx, begin) })
		var elsewhere *driver.PositionError
		if !errors.As(err, &elsewhere) || elsewhere.Found.Position != 1 {
			t.Fatalf("again: %v", err)
		}
		begin.Records[0].Data = make([]byte, driver.MaxRecord+1)
		err = db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error { return table.AppendIn(ctx, tx, begin) })
		wantKind(t, err, interlock.Definite, nil)
	})
}

// autocommitting counts the requests that are transactions of their own as well.
type autocommitting struct {
	*txntest.Counted
	driver.Autocommitter
}

func (a autocommitting) Autocommit(level driver.Isolation) driver.SQL {
	return countedSQL{a.Autocommitter.Autocommit(level), a.Counted}
}

type countedSQL struct {
	driver.SQL
	c *txntest.Counted
}

func (s countedSQL) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	s.c.Statements, s.c.Commits = s.c.Statements+1, s.c.Commits+1
	return s.SQL.Query(ctx, query, args, each)
}

// TestCostOfAppend: a group is one commit, and as many statements as one append is. On a pool
// of PostgreSQL it is one request.
func TestCostOfAppend(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		count := &txntest.Counted{BeginnerAt: db}
		wrapped, costs := driver.BeginnerAt[driver.SQL](count), [3]int{2, 2, 2} // the bound, and all the rest
		if db.Dialect == driver.MariaDB {
			costs = [3]int{4, 5, 5} // the bound, the epochs, the new transactions, the records; and a lock on those that exist
		}
		if a, ok := db.BeginnerAt.(driver.Autocommitter); ok {
			wrapped, costs = autocommitting{count, a}, [3]int{1, 1, 1}
		}
		table := journal.NewTable(wrapped, "")
		db.Do(t, table.Create)
		ok(t, table.Enter(t.Context(), 0, token(1)))
		group := func(n int, after int64, end bool) {
			t.Helper()
			var appends []driver.Append
			for i := range n {
				a := driver.Append{Transaction: strings.Repeat("t", i+1), Epoch: token(1), After: after, Records: []driver.Record{{Kind: "x"}, {Kind: "y"}}, Due: due}
				if end {
					a.Due = time.Time{}
				}
				appends = append(appends, a)
			}
			count.Statements, count.Commits = 0, 0
			ok(t, errors.Join(table.Append(t.Context(), appends)...))
		}
		for _, c := range []struct {
			n          int
			after      int64
			end        bool
			statements int
		}{
			{100, 0, false, costs[0]}, {1, 2, false, costs[1]}, {1, 4, true, costs[2]},
		} {
			group(c.n, c.after, c.end)
			if count.Statements != c.statements || count.Commits != 1 {
				t.Errorf("%d appends after %d: %d statements, %d commits", c.n, c.after, count.Statements, count.Commits)
			}
		}
	})
}

// TestLostCommit: an append whose commit is not answered is Uncertain, and appending
// it again converges.
func TestLostCommit(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		lossy := &losing{BeginnerAt: db}
		table := journal.NewTable[driver.SQL](lossy, "")
		db.Do(t, table.Create)
		lossy.left = 1
		a := driver.Append{Transaction: "t", Records: []driver.Record{{Kind: "begin", Sum: []byte("mine")}}, Due: due}
		wantKind(t, table.Append(t.Context(), []driver.Append{a})[0], interlock.Uncertain, nil)
		j, err := journal.New(table, nil)
		ok(t, err)
		defer j.Close()
		lossy.left = 2
		log, err := j.Begin(t.Context(), "u", "", due, says("begin")...)
		ok(t, err)
		lossy.left = 1
		ok(t, log.End(t.Context(), says("end")...))
		_, entries, err := j.Open(t.Context(), "u")
		if got := kinds(entries); err != nil || !slices.Equal(got, []string{"begin", "end"}) {
			t.Errorf("%v, %v", got, err)
		}
	}, databases.Pgx, databases.Maria)
}

// losing loses the answers to commits that were done.
type losing struct {
	driver.BeginnerAt[driver.SQL]
	left int
}

func (l *losing) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := l.BeginnerAt.BeginAt(ctx, level)
	return losingTx{tx, l}, err
}

type losingTx struct {
	driver.Tx[driver.SQL]
	l *losing
}

func (t losingTx) Commit(ctx context.Context) error {
	err := t.Tx.Commit(ctx)
	if t.l.left--; err == nil && t.l.left >= 0 {
		return &interlock.Error{Op: "commit", Kind: interlock.Uncertain, Err: errors.New("no answer")}
	}
	return err
}

// drive completes a transaction, from wherever it finds it: the role of the
// process that is killed.
func drive(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	j, err := journal.New(journal.NewTable(crash.BeginnerAt(db, at), ""), &journal.Options{Inline: 50})
	if err != nil {
		return err
	}
	defer j.Close()
	log, entries, err := j.Open(ctx, "t")
	if err == nil && log == nil {
		log, err = j.Begin(ctx, "t", "order", due, says("begin", "sent")...)
		entries = says("begin", "sent")
	}
	if err == nil && len(entries) == 2 {
		large := journal.Entry{Kind: "done", Data: bytes.Repeat([]byte("result"), 100)}
		err = log.Append(ctx, due.Add(time.Hour), large, journal.Entry{Kind: "decide"})
		entries = append(entries, large, journal.Entry{Kind: "decide"})
	}
	if err == nil && len(entries) == 4 {
		err = log.End(ctx, says("end")...)
	}
	return err
}

// TestCrashes: a driver that is killed between any two writes, once or twice, leaves a
// transaction that the next one brings to its end, with every record once.
func TestCrashes(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		scene := func(tb testing.TB) crash.Scene {
			db := open(tb)
			db.Do(tb, journal.NewTable(db, "").Create)
			return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
				tb.Helper()
				j, err := journal.New(journal.NewTable(db, ""), nil)
				if err != nil {
					tb.Fatal(err)
				}
				defer j.Close()
				log, entries, err := j.Open(tb.Context(), "t")
				if err != nil || !slices.Equal(kinds(entries), []string{"begin", "sent", "done", "decide", "end"}) || log.Head().Ended.IsZero() || len(entries[2].Data) != 600 {
					tb.Errorf("left %v, %v", kinds(entries), err)
				}
				if n, err := j.Unscheduled(tb.Context()); n != 0 || err != nil {
					tb.Errorf("%d unscheduled, %v", n, err)
				}
				var audit bytes.Buffer
				if err := j.Export(tb.Context(), &audit, "t"); err != nil {
					tb.Errorf("export: %v", err)
				}
			}}
		}
		crash.Share(t, "driver", crash.Part(t), 2, scene)
	}, databases.Pgx, databases.Maria)
}
