package twopc

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// branches are the two databases of a test: an account in each, and a ledger of what
// was moved. The journal is in the first.
type branches struct{ north, south *databases.DB }

// build makes them, on servers that other tests use too.
func build(tb testing.TB, pg, maria *testbed.Server) branches {
	tb.Helper()
	b := branches{databases.Open(tb, pg, databases.Pgx), databases.Open(tb, maria, databases.Maria)}
	b.north.Do(tb, journal.NewTable(b.north, "").Create)
	for _, db := range []*databases.DB{b.north, b.south} {
		db.Exec(tb, `create table account (id int primary key, balance bigint not null)`,
			`create table ledger (transfer varchar(50) primary key)`, `insert into account values (1, 1000)`)
	}
	return b
}

// namespace tells the test's branches from others on the servers.
func (b branches) namespace() string { return b.south.URL[strings.LastIndexByte(b.south.URL, '/')+1:] }

// teller is a process that moves money from Postgres to MariaDB.
type teller struct {
	*Manager
	north Resource[pgx.Tx]
	south Resource[*sql.Conn]
}

// hire makes a teller that passes points around what it sends. The stop function
// returns once it has ended.
func hire(ctx context.Context, at *crash.Points, epoch interlock.Token, o *Options, north, south, namespace string) (*teller, func(), error) {
	var ends []func()
	stop := func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	pool, err := pgxpool.New(ctx, north)
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, pool.Close)
	db, err := sql.Open("mysql", south)
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, func() { _ = db.Close() })
	store, closed, err := databases.Connect(ctx, databases.Pgx, north)
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, closed)
	pg, err := postgres.OpenParticipant(ctx, pool, namespace, nil)
	if err != nil {
		return nil, stop, err
	}
	maria, err := mysql.OpenParticipant(ctx, db, namespace, nil)
	if err != nil {
		return nil, stop, err
	}
	j, err := journal.New(marking{journal.NewTable(store, ""), at}, &journal.Options{Shards: 1})
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, func() { _ = j.Close() })
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond, Recheck: time.Second})
	if err != nil {
		return nil, stop, err
	}
	t := &teller{north: At("north", driver.Preparer[pgx.Tx](pointed[pgx.Tx]{pg, at})), south: At("south", driver.Preparer[*sql.Conn](pointed[*sql.Conn]{maria, at}))}
	if t.Manager, err = New(c, o, t.north, t.south); err != nil {
		return nil, stop, err
	}
	if epoch != 0 {
		ends = append(ends, t.work(ctx, epoch))
	}
	return t, stop, nil
}

// work serves and watches.
func (t *teller) work(ctx context.Context, epoch interlock.Token) (stop func()) {
	c := &claim{token: epoch}
	c.ctx, c.end = context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() { _ = t.coordinator.Serve(c.ctx, c, 0) })
	work.Go(func() { _ = t.Watch(c.ctx) })
	return func() { c.end(interlock.ErrReleased); work.Wait() }
}

// present is a token for a process that begins now.
func present() interlock.Token {
	token, err := interlock.NewToken(interlock.CounterAt(time.Now()), 0)
	if err != nil {
		panic(err)
	}
	return token
}

// move is work that takes ten here and adds ten there.
func (t *teller) move(id string) func(ctx context.Context, x *T) error {
	return func(ctx context.Context, x *T) error {
		north, err := t.north.Join(ctx, x)
		if err != nil {
			return err
		}
		if _, err := north.Exec(ctx, `insert into ledger values ($1)`, id); err != nil {
			return err
		}
		if _, err := north.Exec(ctx, `update account set balance = balance - 10 where id = 1`); err != nil {
			return err
		}
		south, err := t.south.Join(ctx, x)
		if err != nil {
			return err
		}
		if _, err := south.ExecContext(ctx, `insert into ledger values (?)`, id); err != nil {
			return err
		}
		_, err = south.ExecContext(ctx, `update account set balance = balance + 10 where id = 1`)
		return err
	}
}

// pointed passes a point before and after each message to a participant.
type pointed[B any] struct {
	driver.Preparer[B]
	at *crash.Points
}

func (p pointed[B]) Begin(ctx context.Context, x driver.XID) (B, driver.Preparing, error) {
	b, preparing, err := p.Preparer.Begin(ctx, x)
	return b, pointing{preparing, p.at}, err
}

func (p pointed[B]) Commit(ctx context.Context, x driver.XID) error {
	p.at.Pass()
	defer p.at.Pass()
	return p.Preparer.Commit(ctx, x)
}

func (p pointed[B]) Rollback(ctx context.Context, x driver.XID) error {
	p.at.Pass()
	defer p.at.Pass()
	return p.Preparer.Rollback(ctx, x)
}

type pointing struct {
	driver.Preparing
	at *crash.Points
}

func (p pointing) Prepare(ctx context.Context) (driver.Vote, error) {
	p.at.Pass()
	defer p.at.Pass()
	return p.Preparing.Prepare(ctx)
}

// marking passes a point before and after each append.
type marking struct {
	driver.Journal
	at *crash.Points
}

func (m marking) Append(ctx context.Context, appends []driver.Append) []error {
	m.at.Pass()
	defer m.at.Pass()
	return m.Journal.Append(ctx, appends)
}

// telling is the process that is killed: it makes one transfer, and finishes whatever
// its predecessors have left.
func telling(ctx context.Context, at *crash.Points, args []string) error {
	o := &Options{Patience: 300 * time.Millisecond, Scan: 50 * time.Millisecond}
	t, stop, err := hire(ctx, at, present(), o, args[0], args[1], args[2])
	defer stop()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = t.Run(bounded, "1", t.move("1"))
	for interlock.Kind(err) != interlock.Definite && bounded.Err() == nil {
		err = t.Run(bounded, "1", t.move("1"))
	}
	if err != nil && !errors.Is(err, ErrAborted) {
		return err
	}
	return t.finished(bounded)
}

// finished waits until nothing is in doubt, and all that is decided has ended.
func (t *teller) finished(ctx context.Context) error {
	for ctx.Err() == nil {
		left := 0
		for _, err := range t.Unfinished(ctx) {
			if err != nil {
				return err
			}
			left++
		}
		doubts, err := t.InDoubt(ctx)
		if err == nil && left == 0 && len(doubts) == 0 {
			return nil
		}
		sleep(ctx, 10*time.Millisecond)
	}
	return context.Cause(ctx)
}

// judge reads what is left by itself.
func (b branches) judge(tb testing.TB, want []string) {
	tb.Helper()
	north, south := b.ledger(tb, b.north), b.ledger(tb, b.south)
	if !slices.Equal(north, south) || want != nil && !slices.Equal(north, want) {
		tb.Errorf("mixed: the ledgers are %v and %v, told of %v", north, south, want)
	}
	n, s := databases.One[int64](tb, b.north, `select balance from account`), databases.One[int64](tb, b.south, `select balance from account`)
	if moved := int64(10 * len(north)); n != 1000-moved || s != 1000+moved {
		tb.Errorf("%d transfers have left %d and %d", len(north), n, s)
	}
	if left := databases.One[int64](tb, b.north, `select count(*) from pg_prepared_xacts where database = current_database()`); left != 0 {
		tb.Errorf("%d branches are in doubt", left)
	}
	table := journal.NewTable(b.north, "")
	heads, err := table.Heads(tb.Context(), "", 10_000)
	if err != nil {
		tb.Error(err)
	}
	for _, h := range heads {
		if h.Ended.IsZero() {
			tb.Errorf("%q has not ended", h.Transaction)
		}
		_, records, err := table.Read(tb.Context(), h.Transaction, 0)
		decisions := 0
		for _, r := range records {
			if r.Kind == recordDecide {
				decisions++
			}
		}
		if decisions != 1 || err != nil {
			tb.Errorf("%q: %d decisions, %v", h.Transaction, decisions, err)
		}
	}
}

func (b branches) ledger(tb testing.TB, db *databases.DB) []string {
	tb.Helper()
	ids := []string{}
	db.Do(tb, func(ctx context.Context, tx driver.SQL) error {
		ids = ids[:0]
		return tx.Query(ctx, `select transfer from ledger`, nil, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			ids = append(ids, id)
			return err
		})
	})
	slices.Sort(ids)
	return ids
}

// TestKilled: a process that is killed between any two of its messages, and sometimes
// the next one too, leaves a transfer from Postgres to MariaDB that the one after it
// finishes: all of it or nothing.
func TestKilled(t *testing.T) {
	t.Parallel()
	pg, maria := testbed.Postgres(t), testbed.MariaDB(t)
	scene := func(tb testing.TB) crash.Scene {
		b := build(tb, pg, maria)
		return crash.Scene{Args: []string{b.north.URL, b.south.URL, b.namespace()}, Want: func(tb testing.TB) { tb.Helper(); b.judge(tb, nil) }}
	}
	t.Run("once", func(t *testing.T) {
		if points := crash.Once(t, "teller", scene); points != 12 {
			t.Errorf("%d points, want 12", points)
		}
	})
	const pairs, seed = 6, 8
	random := rand.New(rand.NewPCG(seed, 0))
	for range pairs {
		first, second := 1+random.IntN(12), 1+random.IntN(6)
		t.Run(fmt.Sprintf("at %d and %d", first, second), func(t *testing.T) {
			t.Parallel()
			s := scene(t)
			crash.Run(t, "teller", first, s.Args...)
			crash.Run(t, "teller", second, s.Args...)
			crash.Run(t, "teller", 0, s.Args...)
			s.Want(t)
		})
	}
}

// TestHastyScanner: while a process moves money by many transfers at once, another one
// presumes them aborted after no time at all: each is wholly there or not at all, as
// was told.
func TestHastyScanner(t *testing.T) {
	t.Parallel()
	b := build(t, testbed.Postgres(t), testbed.MariaDB(t))
	teller, stop, err := hire(t.Context(), nil, present(), &Options{Patience: time.Minute}, b.north.URL, b.south.URL, b.namespace())
	defer stop()
	ok(t, err)
	hasty, stopHasty, err := hire(t.Context(), nil, 0, &Options{Patience: time.Millisecond}, b.north.URL, b.south.URL, b.namespace())
	defer stopHasty()
	ok(t, err)
	scanning, end := context.WithCancel(t.Context())
	var scans sync.WaitGroup
	scans.Go(func() {
		for scanning.Err() == nil {
			hasty.Scan(scanning)
			sleep(scanning, time.Duration(rand.IntN(3))*time.Millisecond)
		}
	})
	const workers, each, most = 4, 12, 500
	var mu sync.Mutex
	var work sync.WaitGroup
	committed, aborted, strange := []string{}, 0, []error{}
	raced := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(committed) > 0 && aborted > 0 || len(strange) > 0
	}
	for w := range workers {
		work.Go(func() {
			for i := 0; i < each || i < most && !raced(); i++ {
				id := fmt.Sprintf("transfer/%d/%d", w, i)
				err := teller.Run(t.Context(), id, teller.move(id))
				mu.Lock()
				switch {
				case err == nil:
					committed = append(committed, id)
				case errors.Is(err, ErrAborted):
					aborted++
				default:
					strange = append(strange, err)
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	end()
	scans.Wait()
	ok(t, errors.Join(strange...))
	bounded, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ok(t, teller.finished(bounded))
	slices.Sort(committed)
	b.judge(t, committed)
	if len(committed) == 0 || aborted == 0 {
		t.Errorf("%d committed, %d aborted: not a race", len(committed), aborted)
	}
	t.Logf("%d committed, %d aborted", len(committed), aborted)
}
