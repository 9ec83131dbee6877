package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// The participants of both clients.
var (
	byPool = database(func(ctx context.Context, t testing.TB, url, namespace string, o *postgres.ParticipantOptions) (preparedtest.Preparer[pgx.Tx], error) {
		return postgres.OpenParticipant(ctx, poolAt(t, url), namespace, o)
	}, func(ctx context.Context, tx pgx.Tx, query string) error { _, err := tx.Exec(ctx, query); return err })
	byStd = database(func(ctx context.Context, t testing.TB, url, namespace string, o *postgres.ParticipantOptions) (preparedtest.Preparer[*sql.Tx], error) {
		return postgres.OpenStdParticipant(ctx, dbAt(t, url), namespace, o)
	}, func(ctx context.Context, tx *sql.Tx, query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	})
)

// insert is a statement that every branch may run.
const insert = `insert into account values (gen_random_uuid()::text, 1)`

var one = preparedtest.One

func database[T any](open func(ctx context.Context, t testing.TB, url, namespace string, o *postgres.ParticipantOptions) (preparedtest.Preparer[T], error),
	exec func(ctx context.Context, tx T, query string) error) preparedtest.Database[T] {
	return preparedtest.Database[T]{Start: postgres.EmptyServer, Exec: exec, Insert: insert, Schema: "public", Quote: `"`, Missing: "42P01",
		Open: func(ctx context.Context, t testing.TB, url, namespace, marks string) (preparedtest.Preparer[T], *sql.DB, error) {
			p, err := open(ctx, t, url, namespace, &postgres.ParticipantOptions{Marks: marks})
			return p, dbAt(t, url), err
		},
		ByHand: func(verb, transaction string) string {
			return verb + ` prepared 'interlock/shop/b/` + transaction + `'`
		},
	}
}

func TestBranches(t *testing.T) { t.Parallel(); preparedtest.Run(t, byPool) }

func TestStdBranches(t *testing.T) { t.Parallel(); preparedtest.Run(t, byStd) }

// roles are what processes of this package's own do that crash.
var roles = map[string]crash.Role{"branch": preparedtest.Drive(byPool, func(ctx context.Context, url string, wire *crash.Wire) (driver.Preparer[pgx.Tx], error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DialFunc = wire.Dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return postgres.OpenParticipant(ctx, pool, "crash", nil)
})}

func TestKilledAtEveryRequest(t *testing.T) { t.Parallel(); preparedtest.Crashes(t, byPool, "branch") }

func TestParticipant(t *testing.T) {
	t.Parallel()
	runParticipant(t, byPool)
}

func TestStdParticipant(t *testing.T) {
	t.Parallel()
	runParticipant(t, byStd)
}

// TestWaitingBranches: a prepared branch is finished although others wait for its rows.
func TestWaitingBranches(t *testing.T) {
	t.Parallel()
	url := postgres.EmptyServer(t).URL()
	pool, err := postgres.OpenParticipant(t.Context(), poolAt(t, url+"&pool_max_conns=4"), "shop", nil)
	testbed.OK(t, err)
	preparedtest.Waiting(t, byPool.BankOf(t, pool, dbAt(t, url)))
	db := dbAt(t, url)
	db.SetMaxOpenConns(4)
	std, err := postgres.OpenStdParticipant(t.Context(), db, "std", nil)
	testbed.OK(t, err)
	preparedtest.Waiting(t, byStd.BankOf(t, std, dbAt(t, url)))
}

// poolAt is a pool of a URL, or nil without one.
func poolAt(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	if url == "" {
		return nil
	}
	pool, err := pgxpool.New(context.Background(), url)
	testbed.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func dbAt(t testing.TB, url string) *sql.DB {
	t.Helper()
	if url == "" {
		return nil
	}
	db, err := sql.Open("pgx", url)
	testbed.OK(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

var participants atomic.Int64

func runParticipant[T any](t *testing.T, d preparedtest.Database[T]) {
	shared := postgres.EmptyServer(t)
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := shared
			if exclusive {
				server = postgres.EmptyServer(t)
			}
			n := participants.Add(1)
			table := fmt.Sprint("kept_", n)
			if _, err := dbAt(t, server.URL()).Exec(`create table ` + table + ` (k text primary key, v int)`); err != nil {
				t.Fatal(err)
			}
			return paths.At(server, func(t *testing.T, addr string) (drivertest.Branches, error) {
				url := "postgres://postgres@" + addr + "/postgres?sslmode=disable"
				p, db, err := d.Open(t.Context(), t, url, fmt.Sprint("n-", n), "")
				if err != nil {
					return nil, err
				}
				return drivertest.PreparerOf(p, func(ctx context.Context, tx T, key string, value int) error {
					return d.Exec(ctx, tx, fmt.Sprintf(`insert into %s values ('%s', %d) on conflict (k) do update set v = excluded.v`, table, key, value))
				}, func(ctx context.Context, key string) (value int, err error) {
					err = db.QueryRowContext(ctx, `select coalesce((select v from `+table+` where k = $1), 0)`, key).Scan(&value)
					return value, err
				}), nil
			})
		},
	})
}

var _ driver.Preparer[pgx.Tx] = (*postgres.Participant[pgx.Tx])(nil)

type bank = preparedtest.Bank[pgx.Tx]

func openBank(t testing.TB, url, namespace string) bank {
	t.Helper()
	return byPool.OpenBank(t, url, namespace)
}

// TestServerThatPreparesNothing is refused when it is opened, with the setting, and not in
// the middle of the first transaction.
func TestServerThatPreparesNothing(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t, "-c", "max_prepared_transactions=0")
	_, err := postgres.OpenParticipant(t.Context(), poolAt(t, server.URL()), "shop", nil)
	wantKind(t, err, interlock.Definite, "")
	if !strings.Contains(err.Error(), "set max_prepared_transactions") {
		t.Errorf("%v does not say what to do", err)
	}
	_, err = postgres.OpenStdParticipant(t.Context(), dbAt(t, server.URL()), "shop", nil)
	wantKind(t, err, interlock.Definite, "")
}

// TestVotesNo: what the server does not prepare is gone, with an error that says why.
func TestVotesNo(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t, "-c", "max_prepared_transactions=1")
	pool := poolAt(t, server.URL())
	participant, err := postgres.OpenParticipant(t.Context(), pool, "shop", nil)
	testbed.OK(t, err)
	b := byPool.BankOf(t, participant, dbAt(t, server.URL()))
	b.Do(t, `create table parent (id int primary key)`, `create table child (id int references parent deferrable initially deferred)`)
	for query, state := range map[string]string{
		`create temp table x (i int)`:                 "0A000",
		`notify x`:                                    "0A000",
		`declare c cursor with hold for select 1`:     "0A000",
		`insert into child values (1) /* deferred */`: "23503",
	} {
		_, p := b.Branch(t, one("t"), insert, query)
		preparedtest.WantNo(t, p, interlock.Definite, state)
	}
	failing, p := b.Branch(t, one("t"), insert)
	if _, err := failing.Exec(t.Context(), `select 1/0`); err == nil {
		t.Fatal("no error")
	}
	preparedtest.WantNo(t, p, interlock.Definite, "25P02")
	if left := b.Text(t, `select count(*) from account`); left != "0" || len(b.Doubts(t)) != 0 {
		t.Errorf("%s rows, and %v in doubt, of branches that voted no", left, b.Doubts(t))
	}
	b.Prepared(t, one("full"), insert)
	_, p = b.Branch(t, one("fuller"), insert)
	preparedtest.WantNo(t, p, interlock.Retryable, "53200")
	testbed.OK(t, b.Rollback(t.Context(), one("full")))
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are not given back", n)
	}
}

// TestSerializationIsChecked: also where nothing was written, whose reads must have
// been those of some moment.
func TestSerializationIsChecked(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL()+"&default_transaction_isolation=serializable", "shop")
	b.Do(t, `insert into account values ('a', 1), ('b', 1)`)
	const sum = `update account set balance = (select sum(balance) from account) where id = `
	_, first := b.Branch(t, one("1"), sum+`'a'`)
	_, second := b.Branch(t, one("2"), sum+`'b'`)
	preparedtest.WantVote(t, first, driver.VoteYes)
	preparedtest.WantNo(t, second, interlock.Retryable, "40001")
	testbed.OK(t, b.Commit(t.Context(), one("1")))
}

// TestLentTransaction: the user neither ends the branch nor uses its connection
// afterwards, which is somebody else's then.
func TestLentTransaction(t *testing.T) {
	t.Parallel()
	b := openBank(t, postgres.EmptyServer(t).URL(), "shop")
	tx, p := b.Branch(t, one("t"), insert)
	if tx.Commit(t.Context()) == nil || tx.Rollback(t.Context()) == nil {
		t.Error("the user has ended the branch")
	}
	err := pgx.BeginFunc(t.Context(), tx, func(nested pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(insert)
		if err := nested.SendBatch(t.Context(), batch).Close(); err != nil {
			return err
		}
		_, err := nested.CopyFrom(t.Context(), pgx.Identifier{"account"}, []string{"id", "balance"}, pgx.CopyFromRows([][]any{{"c", 1}}))
		return err
	})
	testbed.OK(t, err)
	preparedtest.WantVote(t, p, driver.VoteYes)
	_, execErr := tx.Exec(t.Context(), insert)
	rows, queryErr := tx.Query(t.Context(), `select 1`)
	_, collectErr := pgx.CollectRows(rows, pgx.RowTo[int])
	_, beginErr := tx.Begin(t.Context())
	_, prepareErr := tx.Prepare(t.Context(), "x", `select 1`)
	_, copyErr := tx.CopyFrom(t.Context(), pgx.Identifier{"account"}, []string{"id"}, pgx.CopyFromRows(nil))
	results := tx.SendBatch(t.Context(), &pgx.Batch{})
	_, batchErr := results.Exec()
	for i, err := range []error{execErr, queryErr, collectErr, beginErr, prepareErr, copyErr, batchErr, results.Close(),
		tx.QueryRow(t.Context(), `select 1`).Scan(new(int))} {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%d: after the end: %v", i, err)
		}
	}
	if err := b.Commit(t.Context(), one("t")); err != nil || b.Text(t, `select count(*) from account`) != "3" {
		t.Errorf("%v, %s rows", err, b.Text(t, `select count(*) from account`))
	}
}

// TestLockedIsChanged: a branch that has locked a row votes yes, and keeps the lock.
func TestLockedIsChanged(t *testing.T) {
	t.Parallel()
	b := openBank(t, postgres.EmptyServer(t).URL(), "shop")
	b.Do(t, `insert into account values ('a', 1)`)
	b.Prepared(t, one("t"), `select balance from account where id = 'a' for update`)
	if _, err := b.DB.ExecContext(t.Context(), `select 1 from account for update nowait`); err == nil {
		t.Error("the row is not locked")
	}
	testbed.OK(t, b.Rollback(t.Context(), one("t")))
}

// TestOtherNamespaces: branches of others, in other namespaces and databases, or by
// other programs, are neither listed nor finished.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL(), "shop")
	b.Do(t, `create database elsewhere`)
	others := map[string]bank{
		"a longer namespace": openBank(t, server.URL(), "shop-2"),
		"another database":   openBank(t, strings.Replace(server.URL(), "/postgres?", "/elsewhere?", 1), "shop"),
	}
	n := 0
	for name, other := range others {
		n++
		x := one(fmt.Sprint("t", n))
		other.Prepared(t, x, insert)
		if all := b.Doubts(t); len(all) != 0 {
			t.Errorf("%s: listed as %v", name, all)
		}
		if err := b.Commit(t.Context(), x); err == nil {
			t.Errorf("%s: committed", name)
		}
		if err := b.Rollback(t.Context(), x); name == "another database" && err == nil {
			t.Errorf("%s: rolled back", name)
		}
		if all := other.Doubts(t); len(all) != 1 || all[0] != x {
			t.Errorf("%s: in doubt are %v", name, all)
		}
		if err := other.Commit(t.Context(), x); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, gid := range []string{"interlock/shop", "interlock/shop/b", "interlock/shop//t", "interlock/shop/b/a b", "somebody"} {
		b.Do(t, `begin; `+insert+`; prepare transaction '`+gid+`'`)
	}
	if all := b.Doubts(t); len(all) != 0 {
		t.Errorf("by other programs: listed as %v", all)
	}
}

// TestAnotherRole finds out that it may not finish a branch, which stays in doubt.
func TestAnotherRole(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL(), "shop")
	b.Do(t, `create role clerk login`, `grant all on all tables in schema public to clerk`)
	p, err := postgres.OpenParticipant(t.Context(), poolAt(t, strings.Replace(server.URL(), "postgres@", "clerk@", 1)), "shop", nil)
	testbed.OK(t, err)
	clerk := bank{Preparer: p} // it may create no tables
	b.Prepared(t, one("t"), insert)
	wantKind(t, clerk.Commit(t.Context(), one("t")), interlock.Definite, "42501")
	wantKind(t, clerk.Rollback(t.Context(), one("t")), interlock.Definite, "42501")
	if all := clerk.Doubts(t); len(all) != 1 {
		t.Errorf("in doubt are %v", all)
	}
	testbed.OK(t, b.Commit(t.Context(), one("t")))
}

// TestNameIsTaken: while one session is between its mark and its PREPARE, or rolls a
// branch back, another neither prepares the branch without a mark, nor waits.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL(), "shop")
	other, err := poolAt(t, server.URL()).Begin(t.Context())
	testbed.OK(t, err)
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), `select pg_advisory_xact_lock($1)`, postgres.Key("/prepared", "interlock/shop/b/t")); err != nil {
		t.Fatal(err)
	}
	_, p := b.Branch(t, one("t"), insert)
	preparedtest.WantNo(t, p, interlock.Retryable, "")
	wantKind(t, b.Rollback(t.Context(), one("t")), interlock.Retryable, "")
	if all := b.Doubts(t); len(all) != 0 {
		t.Errorf("in doubt are %v", all)
	}
	testbed.OK(t, other.Rollback(t.Context()))
	testbed.OK(t, b.Rollback(t.Context(), one("t")))
}
