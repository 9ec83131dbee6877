package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// work begins or attaches to the transaction "1", and waits for its end.
type work func(ctx context.Context) error

// protocols create the work of a process from its arguments after the first two.
var protocols = map[string]func(ctx context.Context, n *node, args []string) (work, func(), error){
	"saga": sagaOf, "tcc": holdsOf, "twopc": branchesOf,
}

// alone runs a process that drives all shards while it has the lock, and runs one
// transaction of a protocol.
func alone(ctx context.Context, at *crash.Points, args []string) error {
	target, err := backend.Parse(args[1])
	if err != nil {
		return err
	}
	locks, err := target.Locks(ctx, backend.Options{TTL: ttl})
	if err != nil {
		return err
	}
	n, err := connect(ctx, args[1], at)
	if err != nil {
		return err
	}
	defer n.close()
	do, end, err := protocols[args[0]](ctx, n, args[2:])
	if err != nil {
		return err
	}
	defer end()
	driving, stop := context.WithCancel(ctx)
	driven := make(chan error, 1)
	go func() { driven <- n.underOneLock(driving, locks) }()
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err = do(bounded)
	stop()
	<-driven
	return errors.Join(err, locks.Close(ctx))
}

func sagaOf(_ context.Context, n *node, args []string) (work, func(), error) {
	e, err := n.engine(args[0])
	return func(ctx context.Context) error {
		_, err := e.transfer.Do(ctx, e.Engine, "1", transfer{"a", "b", 10})
		return err
	}, func() {}, err
}

// holdsOf moves ten between two accounts of a database.
func holdsOf(ctx context.Context, n *node, args []string) (work, func(), error) {
	db, closed, err := databases.Connect(ctx, databases.Pgx, args[0])
	if err != nil {
		return nil, nil, err
	}
	holds := tcc.Holds[driver.SQL]{DB: db}
	debit := tcc.Define("debit", passing{holds.Take(), n.at})
	credit := tcc.Define("credit", passing{holds.Give(), n.at})
	m, err := tcc.New(n.coordinator, nil, debit, credit)
	return func(ctx context.Context) error {
		_, err := m.Run(ctx, "transfer", "1", debit.Try(tcc.Want{Item: "a", N: 10}), credit.Try(tcc.Want{Item: "b", N: 10}))
		if err == nil {
			_, err = m.Wait(ctx, "1")
		}
		return err
	}, closed, err
}

// passing passes a point before and after each call.
type passing struct {
	tcc.Resource[tcc.Want, tcc.Want]
	at *crash.Points
}

func (p passing) Try(ctx context.Context, w tcc.Want, until time.Time) (tcc.Want, error) {
	p.at.Pass()
	defer p.at.Pass()
	return p.Resource.Try(ctx, w, until)
}

func (p passing) Confirm(ctx context.Context, w, h tcc.Want) error {
	p.at.Pass()
	defer p.at.Pass()
	return p.Resource.Confirm(ctx, w, h)
}

// branchesOf moves ten between two databases.
func branchesOf(ctx context.Context, n *node, args []string) (work, func(), error) {
	var at [2]twopc.Definition[pgx.Tx]
	var pools []*pgxpool.Pool
	end := func() {
		for _, p := range pools {
			p.Close()
		}
	}
	for i, name := range []string{"north", "south"} {
		pool, err := pgxpool.New(ctx, args[i])
		if err != nil {
			return nil, end, err
		}
		pools = append(pools, pool)
		p, err := postgres.OpenParticipant(ctx, pool, "bank", nil)
		if err != nil {
			return nil, end, err
		}
		at[i] = twopc.Define(name, crash.Preparer(driver.Preparer[pgx.Tx](p), n.at, nil))
	}
	m, err := twopc.New(n.coordinator, &twopc.Options{Patience: 300 * time.Millisecond, Scan: 100 * time.Millisecond}, at[0], at[1])
	return func(ctx context.Context) error { return moved(ctx, m, at) }, end, err
}

// moved runs the transfer until it is decided and has ended.
func moved(ctx context.Context, m *twopc.Engine, at [2]twopc.Definition[pgx.Tx]) error {
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- m.Watch(watching) }()
	defer func() { stop(); <-watched }()
	for {
		err := m.Run(ctx, "1", func(ctx context.Context, t *twopc.T) error { return move(ctx, t, at) })
		var aborted *twopc.AbortedError
		decided := err == nil || errors.As(err, &aborted) && aborted.Recorded
		if left, unsure := unfinished(ctx, m); decided && left == 0 && unsure == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		time.Sleep(20 * time.Millisecond) // before the next attempt
	}
}

// unfinished counts transactions in doubt, and decided ones that have not ended.
func unfinished(ctx context.Context, m *twopc.Engine) (n int, err error) {
	doubts, err := m.InDoubt(ctx)
	for _, unread := range m.Operator().List(ctx, twopc.Filter{Unfinished: true}) {
		n, err = n+1, errors.Join(err, unread)
	}
	return n + len(doubts), err
}

func move(ctx context.Context, t *twopc.T, at [2]twopc.Definition[pgx.Tx]) error {
	for i, delta := range []int64{-10, 10} {
		tx, err := at[i].Join(ctx, t)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update account set balance = balance + $1`, delta); err != nil {
			return err
		}
	}
	return nil
}

// TestAsleep stops a process at points of a transaction until another one has acquired
// its lock and completed the transaction. When it wakes up, it must append nothing and
// move nothing.
func TestAsleep(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	scenes := map[string]func(testing.TB, *databases.DB) crash.Sleeper{"saga": sagaScene, "tcc": holdsScene, "twopc": branchesScene}
	for name, scene := range scenes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crash.Asleep(t, "alone", "alone", 2, func(tb testing.TB) crash.Sleeper {
				db := idle(tb, server)
				s := scene(tb, db)
				s.Args = append([]string{name, db.URL}, s.Args...)
				return s
			})
		})
	}
}

// idle opens a database that ends the sessions of stopped processes.
func idle(tb testing.TB, server *testbed.Server) *databases.DB {
	tb.Helper()
	db := databases.Open(tb, server, databases.Pgx)
	db.Exec(tb, crash.EndIdle)
	return db
}

// recorded returns the journal's records and the state of beside, or nothing until the
// transaction has ended. It requires exactly one decision.
func recorded(tb testing.TB, db *databases.DB, key string, beside ...any) string {
	tb.Helper()
	head, records, err := journal.NewTable(db, "").Read(tb.Context(), key, 0)
	if err != nil {
		tb.Fatal(err)
	}
	if head.Ended.IsZero() {
		return ""
	}
	var all []string
	decided := 0
	for _, r := range records {
		all = append(all, fmt.Sprintf("%d %s:%s", r.Epoch, r.Kind, r.Step))
		if r.Kind == "decide" {
			decided++
		}
	}
	if decided != 1 {
		tb.Errorf("%d decisions: %v", decided, all)
	}
	return strings.Join(all, ", ") + fmt.Sprint(beside...)
}

func sagaScene(tb testing.TB, db *databases.DB) crash.Sleeper {
	b := newBank(tb, "a", "b")
	left := func(tb testing.TB) string {
		tb.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.accounts["a"] != 990 || b.accounts["b"] != 1010 {
			tb.Errorf("accounts %v", b.accounts)
		}
		return recorded(tb, db, "1", b.states)
	}
	return sleeper(left, b.url)
}

func holdsScene(tb testing.TB, db *databases.DB) crash.Sleeper {
	table := tcc.Table{}
	db.Do(tb, table.Create)
	db.Do(tb, func(ctx context.Context, tx driver.SQL) error {
		return errors.Join(table.Set(ctx, tx, "a", 1000), table.Set(ctx, tx, "b", 1000))
	})
	left := func(tb testing.TB) string {
		tb.Helper()
		var a, b tcc.Level
		db.Do(tb, func(ctx context.Context, tx driver.SQL) (err error) {
			if a, err = table.Show(ctx, tx, "a"); err == nil {
				b, err = table.Show(ctx, tx, "b")
			}
			return err
		})
		if (a != tcc.Level{Capacity: 1000, Sold: 10}) || (b != tcc.Level{Capacity: 1010}) {
			tb.Errorf("a %+v, b %+v", a, b)
		}
		return recorded(tb, db, "1", a, b)
	}
	return sleeper(left, db.URL)
}

func branchesScene(tb testing.TB, db *databases.DB) crash.Sleeper {
	south := idle(tb, db.Server)
	for _, db := range []*databases.DB{db, south} {
		db.Exec(tb, `create table account (balance bigint)`, `insert into account values (1000)`)
	}
	left := func(tb testing.TB) string {
		tb.Helper()
		const balance, doubts = `select balance from account`, `select count(*) from pg_prepared_xacts where database = current_database()`
		n, s := databases.One[int64](tb, db, balance), databases.One[int64](tb, south, balance)
		if n+s != 2000 || n != 990 && n != 1000 {
			tb.Errorf("%d and %d", n, s)
		}
		if open := databases.One[int64](tb, db, doubts) + databases.One[int64](tb, south, doubts); open != 0 {
			tb.Errorf("%d branches are in doubt", open)
		}
		return recorded(tb, db, twopc.Key("1"), n, s)
	}
	return sleeper(left, db.URL, south.URL)
}

// sleeper requires that the heir has completed the transaction.
func sleeper(left func(testing.TB) string, args ...string) crash.Sleeper {
	return crash.Sleeper{Left: left, Scene: crash.Scene{Args: args, Want: func(tb testing.TB) {
		tb.Helper()
		if left(tb) == "" {
			tb.Error("it has not ended")
		}
	}}}
}
