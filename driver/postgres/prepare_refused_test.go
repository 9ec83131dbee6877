package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
