package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var _ driver.Preparer[pgx.Tx] = (*postgres.Participant[pgx.Tx])(nil)

// bank is a server with a table of accounts and a participant.
type bank struct {
	*postgres.Participant[pgx.Tx]
	pool *pgxpool.Pool
}

func openBank(t testing.TB, url, namespace string, o *postgres.ParticipantOptions) bank {
	t.Helper()
	pool := poolAt(t, url)
	p, err := postgres.OpenParticipant(t.Context(), pool, namespace, o)
	if err != nil {
		t.Fatal(err)
	}
	b := bank{p, pool}
	b.do(t, `create table if not exists account (id text primary key, balance int)`)
	return b
}

func (b bank) do(t testing.TB, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := b.pool.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func (b bank) text(t testing.TB, query string) (s string) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), query).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

// branch begins a branch and runs statements in it.
func (b bank) branch(t testing.TB, x driver.XID, queries ...string) (pgx.Tx, driver.Preparing) {
	t.Helper()
	tx, p, err := b.Begin(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Abandon(context.Background()) })
	for _, q := range queries {
		if _, err := tx.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	return tx, p
}

func (b bank) prepared(t testing.TB, x driver.XID, queries ...string) {
	t.Helper()
	_, p := b.branch(t, x, queries...)
	if vote, err := p.Prepare(t.Context()); vote != driver.VoteYes || err != nil {
		t.Fatalf("it votes %v, %v", vote, err)
	}
}

func (b bank) doubts(t testing.TB) (all []driver.XID) {
	t.Helper()
	found, err := b.InDoubt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range found {
		if time.Since(d.Since).Abs() > time.Hour {
			t.Errorf("%v is in doubt since %v", d.XID, d.Since)
		}
		all = append(all, d.XID)
	}
	return all
}

// insert is a statement that every branch may run.
const insert = `insert into account values (gen_random_uuid()::text, 1)`

func one(transaction string) driver.XID {
	return driver.XID{Transaction: transaction, Branch: "b"}
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

func TestParticipantIsOpenedWrongly(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	pool := poolAt(t, server.URL())
	for _, namespace := range []string{"", "a/b", "a'b", "ä", strings.Repeat("x", driver.MaxXIDNamespace+1)} {
		_, err := postgres.OpenParticipant(t.Context(), pool, namespace, nil)
		if !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
	_, err := postgres.OpenParticipant(t.Context(), pool, "n", &postgres.ParticipantOptions{Marks: "a.b.c"})
	wantKind(t, err, interlock.Bug, "")
	_, err = postgres.OpenParticipant(t.Context(), nil, "n", nil)
	wantKind(t, err, interlock.Bug, "")
	_, err = postgres.OpenStdParticipant(t.Context(), nil, "n", nil)
	wantKind(t, err, interlock.Bug, "")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = postgres.OpenParticipant(ended, pool, "n", nil)
	wantKind(t, err, interlock.Definite, "")
	proxy := testbed.NewProxy(t, server.Addr())
	proxy.Cut()
	_, err = postgres.OpenParticipant(t.Context(), poolAt(t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1)), "n", nil)
	wantKind(t, err, interlock.Retryable, "")
}

// TestVotesNo: what the server does not prepare is gone, with an error that says why.
func TestVotesNo(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t, "-c", "max_prepared_transactions=1")
	b := openBank(t, server.URL(), "shop", nil)
	b.do(t, `create table parent (id int primary key)`, `create table child (id int references parent deferrable initially deferred)`)
	for name, tt := range map[string]struct {
		query string
		state string
	}{
		"temporary table":     {`create temp table x (i int)`, "0A000"},
		"notify":              {`notify x`, "0A000"},
		"held cursor":         {`declare c cursor with hold for select 1`, "0A000"},
		"deferred constraint": {`insert into child values (1)`, "23503"},
	} {
		_, p := b.branch(t, one("t"), insert, tt.query)
		vote, err := p.Prepare(t.Context())
		if wantKind(t, err, interlock.Definite, tt.state); vote != driver.VoteNo {
			t.Errorf("%s: it votes %v", name, vote)
		}
	}
	failing, p := b.branch(t, one("t"), insert)
	if _, err := failing.Exec(t.Context(), `select 1/0`); err == nil {
		t.Fatal("no error")
	}
	vote, err := p.Prepare(t.Context())
	if wantKind(t, err, interlock.Definite, "25P02"); vote != driver.VoteNo {
		t.Errorf("failed: it votes %v", vote)
	}
	if left := b.text(t, `select count(*)::text from account`); left != "0" || len(b.doubts(t)) != 0 {
		t.Errorf("%s rows, and %v in doubt, of branches that voted no", left, b.doubts(t))
	}
	b.prepared(t, one("full"), insert)
	_, p = b.branch(t, one("fuller"), insert)
	vote, err = p.Prepare(t.Context())
	if wantKind(t, err, interlock.Retryable, "53200"); vote != driver.VoteNo {
		t.Errorf("as many as there may be: it votes %v", vote)
	}
	if err := b.Rollback(t.Context(), one("full")); err != nil {
		t.Error(err)
	}
	if n := b.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are not given back", n)
	}
}

// TestSerializationIsChecked: also where nothing was written, whose reads must have
// been those of some moment.
func TestSerializationIsChecked(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	b := openBank(t, server.URL()+"&default_transaction_isolation=serializable", "shop", nil)
	b.do(t, `insert into account values ('a', 1), ('b', 1)`)
	const sum = `update account set balance = (select sum(balance) from account) where id = `
	_, first := b.branch(t, one("1"), sum+`'a'`)
	_, second := b.branch(t, one("2"), sum+`'b'`)
	if vote, err := first.Prepare(t.Context()); vote != driver.VoteYes || err != nil {
		t.Fatalf("it votes %v, %v", vote, err)
	}
	vote, err := second.Prepare(t.Context())
	if wantKind(t, err, interlock.Retryable, "40001"); vote != driver.VoteNo {
		t.Errorf("it votes %v", vote)
	}
	if err := b.Commit(t.Context(), one("1")); err != nil {
		t.Error(err)
	}
}

// TestLentTransaction: the user neither ends the branch nor uses its connection
// afterwards, which is somebody else's then.
func TestLentTransaction(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.Postgres(t).URL(), "shop", nil)
	tx, p := b.branch(t, one("t"), insert)
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
	if err != nil {
		t.Fatal(err)
	}
	if vote, err := p.Prepare(t.Context()); vote != driver.VoteYes || err != nil {
		t.Fatalf("it votes %v, %v", vote, err)
	}
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
	if err := b.Commit(t.Context(), one("t")); err != nil || b.text(t, `select count(*)::text from account`) != "3" {
		t.Errorf("%v, %s rows", err, b.text(t, `select count(*)::text from account`))
	}
}

// TestLockedIsChanged: a branch that has locked a row votes yes, and keeps the lock.
func TestLockedIsChanged(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.Postgres(t).URL(), "shop", nil)
	b.do(t, `insert into account values ('a', 1)`)
	b.prepared(t, one("t"), `select balance from account where id = 'a' for update`)
	if _, err := b.pool.Exec(t.Context(), `select 1 from account for update nowait`); err == nil {
		t.Error("the row is not locked")
	}
	if err := b.Rollback(t.Context(), one("t")); err != nil {
		t.Error(err)
	}
}
