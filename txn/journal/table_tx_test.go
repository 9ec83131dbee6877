package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestAppendIn: an append in the user's transaction is done if that commits.
func TestAppendIn(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
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

// autocommitting also counts requests without a transaction around them.
type autocommitting struct {
	*databases.Counted
	driver.Autocommitter
}

func (a autocommitting) Autocommit(level driver.Isolation) driver.SQL {
	a.Commits.Add(1)
	return a.SQL(a.Autocommitter.Autocommit(level))
}

// atomic also counts transactions in one request.
type atomic struct {
	*databases.Counted
	driver.Atomic
}

func (a atomic) Atomically(ctx context.Context, level driver.Isolation, statements string) (bool, *int64, error) {
	a.Statements.Add(1)
	a.Commits.Add(1)
	return a.Atomic.Atomically(ctx, level, statements)
}

// TestCostOfAppend: a group is one commit, and as many statements as one append. On a pool of
// PostgreSQL it is one request. The records of an append are one row.
func TestCostOfAppend(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		if strings.Contains(db.URL, "ORACLE") { // a mode without an append in one request
			db = databases.Open(t, db.Server, db.Client)
		}
		count := &databases.Counted{BeginnerAt: db}
		wrapped, costs := driver.BeginnerAt[driver.SQL](count), [2]int64{2, 2} // the bound, and the rest
		if a, ok := db.BeginnerAt.(driver.Atomic); ok {
			wrapped, costs = atomic{count, a}, [2]int64{4, 1} // of a group: the bound, the epochs, the new transactions, the records
		}
		if a, ok := db.BeginnerAt.(driver.Autocommitter); ok {
			wrapped, costs = autocommitting{count, a}, [2]int64{1, 1}
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
			count.Reset()
			ok(t, errors.Join(table.Append(t.Context(), appends)...))
		}
		for _, c := range []struct {
			n          int
			after      int64
			end        bool
			statements int64
		}{
			{100, 0, false, costs[0]}, {1, 2, false, costs[1]}, {1, 4, true, costs[1]},
		} {
			group(c.n, c.after, c.end)
			if n, commits := count.Statements.Load(), count.Commits.Load(); n != c.statements || commits != 1 {
				t.Errorf("%d appends after %d: %d statements, %d commits", c.n, c.after, n, commits)
			}
		}
		_, err := table.Shards(t.Context(), 0, 64)
		ok(t, err)
		count.Reset()
		ok(t, table.Append(t.Context(), []driver.Append{{Transaction: "begun", Shards: 64, Records: []driver.Record{{Kind: "x"}, {Kind: "y"}}, Due: due}})[0])
		if n, commits := count.Statements.Load(), count.Commits.Load(); n != costs[1] || commits != 1 {
			t.Errorf("a begin: %d statements, %d commits", n, commits)
		}
		if rows := databases.One[int64](t, db, `select count(*) from interlock_journal`); rows != 103 {
			t.Errorf("103 appends of two records are %d rows", rows)
		}
	})
}

// TestLostCommit: an append whose commit is not answered is Uncertain, and appending
// it again converges.
func TestLostCommit(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		lost := 0 // so many replies are
		table := journal.NewTable[driver.SQL](databases.Unanswered(db, func() bool { lost--; return lost >= 0 }), "")
		db.Do(t, table.Create)
		lost = 1
		a := driver.Append{Transaction: "t", Records: []driver.Record{{Kind: "begin", Sum: []byte("mine")}}, Due: due}
		wantKind(t, table.Append(t.Context(), []driver.Append{a})[0], interlock.Uncertain, nil)
		j, err := journal.New(table, nil)
		ok(t, err)
		defer j.Close()
		lost = 2
		log, err := j.Begin(t.Context(), "u", "", due, says("begin")...)
		ok(t, err)
		lost = 1
		ok(t, log.End(t.Context(), says("end")...))
		_, entries, err := j.Open(t.Context(), "u")
		if got := kinds(entries); err != nil || !slices.Equal(got, []string{"begin", "end"}) {
			t.Errorf("%v, %v", got, err)
		}
	}, databases.Pgx, databases.Maria)
}

// drive completes a transaction from any state: the role of the process that is
// killed.
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

// TestCrashes: if a driver is killed between any two writes, once or twice, the next one
// completes its transaction, with every record once.
func TestCrashes(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		scene := func(tb testing.TB) crash.Scene {
			db := open(tb)
			db.Do(tb, journal.NewTable(db, "").Create)
			return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
				tb.Helper()
				j, err := journal.New(journal.NewTable(db, ""), nil)
				ok(tb, err)
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

// TestHeldIDsHurtNobody: while the user's transactions lock ids, of new and of old
// transactions, and the mark of a shard, appends to others succeed. Only those to the same
// wait, until the user's transactions have ended.
func TestHeldIDsHurtNobody(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		j := open(t, table, &journal.Options{Patience: time.Minute})
		old, err := j.Begin(t.Context(), "old", "order", due, says("begin")...)
		ok(t, err)
		var held []driver.Tx[driver.SQL]
		for _, a := range []driver.Append{
			{Transaction: "new1", Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "new2", Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "old", Shard: j.ShardOf("old"), After: 1, Records: []driver.Record{{Kind: "done"}}, Due: due},
		} {
			tx := db.Begun(t, driver.ReadCommitted)
			ok(t, table.AppendIn(t.Context(), tx, a))
			held = append(held, tx)
		}
		begun := make(chan error, 3)
		for _, id := range []string{"new1", "new2"} {
			go func() {
				_, err := j.Begin(t.Context(), id, "order", due, says("begin")...)
				begun <- err
			}()
		}
		go func() { begun <- old.Append(t.Context(), due, says("sent")...) }()
		// More than fits into one request, while those wait.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var work sync.WaitGroup
		from := time.Now()
		for i := range 20 {
			work.Go(func() {
				for k := range 5 {
					_, err := j.Begin(ctx, fmt.Sprintf("free%d.%d", i, k), "order", due, says("begin")...)
					if err != nil {
						t.Errorf("beside ids that are held: %v", err)
					}
				}
			})
		}
		work.Wait()
		t.Logf("100 beside three held ids took %v", time.Since(from))
		select {
		case err := <-begun:
			t.Fatalf("one that is held ended: %v", err)
		default:
		}
		for _, tx := range held {
			ok(t, tx.Commit(t.Context()))
		}
		for range held {
			err := <-begun
			if !errors.Is(err, journal.ErrExists) && !errors.Is(err, journal.ErrConflict) {
				t.Errorf("after the user's transactions: %v", err)
			}
		}
	})
}

// TestEnteringHoldsUpOneShard: a new owner enters a shard, and waits for a transaction of the
// former one. Meanwhile appends to other shards succeed in one group with an append to this
// shard.
func TestEnteringHoldsUpOneShard(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		ok(t, table.Enter(t.Context(), 0, token(1)))
		ok(t, table.Enter(t.Context(), 1, token(1)))
		entering := db.Begun(t, driver.ReadCommitted)
		_, err := entering.Exec(t.Context(), `update interlock_journal_shard set source = 'x' where resource = '`+driver.ShardName(0)+`'`)
		ok(t, err)
		appends := []driver.Append{
			{Transaction: "a", Shard: 0, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "b", Shard: 1, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "c", Shard: 2, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		errs := table.Append(ctx, appends)
		wantKind(t, errs[0], interlock.Retryable, interlock.ErrHeld)
		ok(t, errs[1])
		wantKind(t, errs[2], interlock.Bug, nil)
		ok(t, entering.Rollback(t.Context()))
		ok(t, table.Append(t.Context(), appends[:1])[0])
	}, databases.Pgx, databases.Maria)
}

const bound = 20 * time.Second

// TestStoppedOwner: an owner is paused within a transaction of the journal, its own or a lent
// one. The next owner can enter the shard. When the former one wakes up, its commit fails.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		db := open(t)
		next := journal.NewTable(db, "")
		db.Do(t, next.Create)
		for shard := range 3 {
			ok(t, next.Enter(t.Context(), shard, token(1)))
		}
		record := func(id string, shard int) driver.Append {
			return driver.Append{Transaction: id, Shard: shard, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due}
		}
		ok(t, next.Append(t.Context(), []driver.Append{record("claimed", 1)})[0])

		stopped, wake := make(chan struct{}, 2), make(chan struct{}) // just before a commit
		awake := sync.OnceFunc(func() { close(wake) })
		defer awake()
		owner := journal.NewTable[driver.SQL](databases.Committing[driver.SQL]{BeginnerAt: db, Instead: func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
			stopped <- struct{}{}
			<-wake
			return tx.Commit(ctx)
		}}, "")
		owner.EndIdleAfter(time.Second)
		appended := testbed.Later(t, bound, func() error { return owner.Append(context.Background(), []driver.Append{record("appended", 0)})[0] })
		testbed.Eventually(t, "the append reaches its commit", bound, func() bool { return len(stopped) == 1 })
		claimed := testbed.Later(t, bound, func() error {
			_, err := owner.Claim(context.Background(), 1, token(1), due, due.Add(time.Hour), 10)
			return err
		})
		testbed.Eventually(t, "the claim reaches its commit", bound, func() bool { return len(stopped) == 2 })
		lent := db.Begun(t, driver.ReadCommitted)
		ok(t, owner.AppendIn(t.Context(), lent, record("lent", 2)))

		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		for shard := range 3 {
			ok(t, next.Enter(ctx, shard, token(2)))
		}
		awake()
		for what, err := range map[string]error{"append": appended(), "claim": claimed(), "lent": lent.Commit(t.Context())} {
			if err == nil {
				t.Errorf("%s: it is committed after the next owner has entered", what)
			}
		}
		for id, position := range map[string]int64{"appended": 0, "claimed": 1, "lent": 0} {
			head, _, err := next.Read(t.Context(), id, 0)
			if ok(t, err); head.Position != position || head.Claimed {
				t.Errorf("%s: %+v", id, head)
			}
		}
	}, databases.Pgx, databases.Maria)
}
