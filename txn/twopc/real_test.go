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

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// branches are the two databases of a test: an account in each, and a ledger of the
// transfers. The journal is in the first.
type branches struct{ north, south *databases.DB }

// build creates them, on servers shared with other tests.
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

// namespace distinguishes the test's branches from others on the servers.
func (b branches) namespace() string { return b.south.URL[strings.LastIndexByte(b.south.URL, '/')+1:] }

// teller is a process that moves money from Postgres to MariaDB.
type teller struct {
	*Engine
	north Definition[pgx.Tx]
	south Definition[*sql.Conn]
}

// hire returns a teller whose messages pass on. The stop function returns once the teller has
// ended.
func hire(ctx context.Context, on way, epoch interlock.Token, o *Options, north, south, namespace string) (*teller, func(), error) {
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
	j, err := journal.New(crash.Journal(journal.NewTable(store, ""), on.at), &journal.Options{Shards: 1})
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, func() { _ = j.Close() })
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond, Recheck: time.Second})
	if err != nil {
		return nil, stop, err
	}
	t := &teller{north: Define("north", crash.Preparer(driver.Preparer[pgx.Tx](pg), on.at, on.turns)), south: Define("south", crash.Preparer(driver.Preparer[*sql.Conn](maria), on.at, on.turns))}
	if t.Engine, err = New(c, o, t.north, t.south); err != nil {
		return nil, stop, err
	}
	if epoch != 0 {
		ends = append(ends, t.work(ctx, epoch))
	}
	return t, stop, nil
}

// work serves and watches. If another process has taken the shards over, it serves them
// again, under another claim.
func (t *teller) work(ctx context.Context, epoch interlock.Token) (stop func()) {
	ctx, end := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for ; ctx.Err() == nil; epoch = txntest.Present() {
			_ = t.coordinator.Serve(ctx, txntest.Owner(ctx, epoch), 0)
		}
	})
	work.Go(func() { _ = t.Watch(ctx) })
	return func() { end(interlock.ErrReleased); work.Wait() }
}

// move returns work that moves ten from Postgres to MariaDB.
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

// finished waits until nothing is in doubt, and all decided transactions have ended.
func (t *teller) finished(ctx context.Context) error {
	var unread error // the server ends sessions of a paused process
	for ctx.Err() == nil {
		left := 0
		unread = nil
		for _, err := range t.Operator().List(ctx, Filter{Unfinished: true}) {
			unread = errors.Join(unread, err)
			left++
		}
		doubts, err := t.InDoubt(ctx)
		if unread = errors.Join(unread, err); unread == nil && left == 0 && len(doubts) == 0 {
			return nil
		}
		backoff.Sleep(ctx, 10*time.Millisecond)
	}
	return errors.Join(context.Cause(ctx), unread)
}

// judge checks the databases independently.
func (b branches) judge(tb testing.TB, want []string) {
	tb.Helper()
	north, south := b.ledger(tb, b.north), b.ledger(tb, b.south)
	if !slices.Equal(north, south) || want != nil && !slices.Equal(north, want) {
		tb.Errorf("mixed: the ledgers are %v and %v, reported %v", north, south, want)
	}
	n, s := databases.One[int64](tb, b.north, `select balance from account`), databases.One[int64](tb, b.south, `select balance from account`)
	if moved := int64(10 * len(north)); n != 1000-moved || s != 1000+moved {
		tb.Errorf("%d transfers have left %d and %d", len(north), n, s)
	}
	txntest.Equal(tb, "branches are in doubt", databases.One[int64](tb, b.north, `select count(*) from pg_prepared_xacts where database = current_database()`), 0)
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

// TestHastyScanner: while a process makes many concurrent transfers, another one presumes
// them aborted at once. Each happens completely or not at all, as reported.
func TestHastyScanner(t *testing.T) {
	t.Parallel()
	b := build(t, testbed.Postgres(t), testbed.MariaDB(t))
	teller, stop, err := hire(t.Context(), way{}, txntest.Present(), &Options{Patience: time.Minute}, b.north.URL, b.south.URL, b.namespace())
	defer stop()
	ok(t, err)
	hasty, stopHasty, err := hire(t.Context(), way{}, 0, &Options{Patience: time.Millisecond}, b.north.URL, b.south.URL, b.namespace())
	defer stopHasty()
	ok(t, err)
	scanning, end := context.WithCancel(t.Context())
	var scans sync.WaitGroup
	scans.Go(func() {
		for scanning.Err() == nil {
			hasty.Scan(scanning)
			backoff.Sleep(scanning, time.Duration(rand.IntN(3))*time.Millisecond)
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
	bounded, cancel := context.WithTimeout(t.Context(), testbed.Patience)
	defer cancel()
	ok(t, teller.finished(bounded))
	slices.Sort(committed)
	b.judge(t, committed)
	if len(committed) == 0 || aborted == 0 {
		t.Errorf("%d committed, %d aborted: not a race", len(committed), aborted)
	}
	t.Logf("%d committed, %d aborted", len(committed), aborted)
}

// roles are the processes that are killed and paused.
var roles = map[string]crash.Role{"teller": telling, "teller in turn": tellingInTurn, "finisher": finishing}

// way carries the messages of a process.
type way struct {
	at    *crash.Points
	turns *sync.Mutex // nil: messages to participants may be concurrent
}

// hasty presumes and scans soon, so that tests need not wait.
var hasty = Options{Patience: 300 * time.Millisecond, Scan: 50 * time.Millisecond}

// telling is the process that is killed: it makes one transfer, and finishes those of its
// predecessors.
func telling(ctx context.Context, at *crash.Points, args []string) error {
	return tell(ctx, way{at: at}, hasty, args)
}

// tellingInTurn sends one message after the other, without scans.
func tellingInTurn(ctx context.Context, at *crash.Points, args []string) error {
	return tell(ctx, way{at, &sync.Mutex{}}, Options{Scan: time.Hour}, args)
}

func tell(ctx context.Context, on way, o Options, args []string) error {
	t, stop, err := hire(ctx, on, txntest.Present(), &o, args[0], args[1], args[2])
	defer stop()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, testbed.Patience)
	defer cancel()
	err = t.Run(bounded, "1", t.move("1"))
	for interlock.Kind(err) != interlock.Definite && bounded.Err() == nil {
		err = t.Run(bounded, "1", t.move("1"))
	}
	if err != nil && !errors.Is(err, ErrAborted) {
		return err
	}
	if o, unread := t.Look(bounded, "1"); err == nil && (unread != nil || o.Decision != Commit) {
		return fmt.Errorf("it got the answer that it is committed, and the journal says %q, %w", o.Decision, unread)
	}
	return t.finished(bounded)
}

// finishing finishes the transfers of others, and makes none.
func finishing(ctx context.Context, at *crash.Points, args []string) error {
	t, stop, err := hire(ctx, way{at: at}, txntest.Present(), &hasty, args[0], args[1], args[2])
	defer stop()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, testbed.Patience)
	defer cancel()
	return t.finished(bounded)
}

// killing returns a scene of one transfer.
func (b branches) killing() crash.Scene {
	return crash.Scene{Args: []string{b.north.URL, b.south.URL, b.namespace()}, Want: func(tb testing.TB) { tb.Helper(); b.judge(tb, nil) }}
}

// TestKilled: a process that is killed between any two of its messages leaves a transfer
// from Postgres to MariaDB that the next one finishes: all of it or nothing.
func TestKilled(t *testing.T) {
	t.Parallel()
	pg, maria := testbed.Postgres(t), testbed.MariaDB(t)
	// A machine so slow that patience ends has messages repeated, which are points too.
	points := crash.Once(t, "teller", func(tb testing.TB) crash.Scene { return build(tb, pg, maria).killing() })
	if points < 12 {
		t.Errorf("%d points, want 12 at least", points)
	}
}

// TestAsleep pauses a process anywhere until another one has finished its transfer: when it
// wakes up it appends nothing after that, and changes nothing decided.
func TestAsleep(t *testing.T) {
	t.Parallel()
	pg, maria := testbed.Postgres(t), testbed.MariaDB(t)
	crash.Asleep(t, "teller", "finisher", 4, func(tb testing.TB) crash.Sleeper {
		b := build(tb, pg, maria)
		return crash.Sleeper{Scene: b.killing(), Left: b.recorded}
	})
}

// recorded returns the journal's records, and the moved amount; empty if undecided.
func (b branches) recorded(tb testing.TB) string {
	tb.Helper()
	all := txntest.Records(tb, journal.NewTable(b.north, ""), Key("1"))
	if len(all) == 0 {
		return ""
	}
	return strings.Join(append(all, b.ledger(tb, b.north)...), " ")
}
