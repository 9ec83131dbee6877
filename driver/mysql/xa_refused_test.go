package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// bank is a server with a table of accounts and a participant.
type bank struct {
	*mysql.Participant
	database
}

func openBank(t testing.TB, dsn, namespace string) bank {
	t.Helper()
	db := open(t, dsn)
	p, err := mysql.OpenParticipant(t.Context(), db.DB, namespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	db.do(t, `create table if not exists account (id varchar(40) primary key, balance int)`)
	return bank{p, db}
}

// begin opens a branch and runs statements in it.
func (b bank) branch(t testing.TB, x driver.XID, queries ...string) (*sql.Conn, driver.Preparing) {
	t.Helper()
	conn, p, err := b.Participant.Begin(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Abandon(context.Background()) })
	for _, q := range queries {
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	return conn, p
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

// recovered is what the server itself lists.
func (b bank) recovered(t testing.TB) (all []string) {
	t.Helper()
	rows, err := b.QueryContext(t.Context(), `xa recover`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var format, gtrid, bqual int
		var data string
		if err := rows.Scan(&format, &gtrid, &bqual, &data); err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// insert is a statement that every branch may run.
const insert = `insert into account values (uuid(), 1)`

func branchOf(transaction string) driver.XID {
	return driver.XID{Transaction: transaction, Branch: "b"}
}

// TestUnsafeServers: where prepared branches can be lost, or be replicated by halves,
// none is opened.
func TestUnsafeServers(t *testing.T) {
	for _, option := range []string{"--replicate-do-db=shop", "--replicate-wild-ignore-table=shop.%", "--read-only=1", "--log-bin=log --binlog-ignore-db=shop"} {
		server := testbed.MariaDB(t, strings.Fields(option)...)
		_, err := mysql.OpenParticipant(t.Context(), open(t, server.URL()).DB, "shop", nil)
		wantKind(t, err, interlock.Definite, 0)
		if err != nil && !strings.Contains(err.Error(), "filter") && !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s: %v does not say so", option, err)
		}
	}
}

func TestParticipantIsOpenedWrongly(t *testing.T) {
	server := testbed.MariaDB(t)
	db := open(t, server.URL()).DB
	for _, namespace := range []string{"", "a/b", "a'b", "ä", strings.Repeat("x", driver.MaxXIDNamespace+1)} {
		_, err := mysql.OpenParticipant(t.Context(), db, namespace, nil)
		if !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
	_, err := mysql.OpenParticipant(t.Context(), db, "n", &mysql.ParticipantOptions{Marks: "a.b.c"})
	wantKind(t, err, interlock.Bug, 0)
	_, err = mysql.OpenParticipant(t.Context(), nil, "n", nil)
	wantKind(t, err, interlock.Bug, 0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = mysql.OpenParticipant(ended, db, "n", nil)
	wantKind(t, err, interlock.Definite, 0)
	proxy := testbed.NewProxy(t, server.Addr())
	proxy.Cut()
	_, err = mysql.OpenParticipant(t.Context(), open(t, behind(server, proxy)).DB, "n", nil)
	wantKind(t, err, interlock.Retryable, 0)
}

// TestBranchCannotBeLeft: statements that would end the branch, or commit, are refused,
// and the branch goes on.
func TestBranchCannotBeLeft(t *testing.T) {
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	conn, p := b.branch(t, branchOf("t"), insert)
	for _, q := range []string{`commit`, `rollback`, `begin`, `create table x (i int)`, `truncate account`, `xa start 'other'`} {
		if _, err := conn.ExecContext(t.Context(), q); err == nil {
			t.Errorf("%s is done inside of a branch", q)
		}
	}
	if vote, err := p.Prepare(t.Context()); vote != driver.VoteYes || err != nil {
		t.Fatalf("it votes %v, %v", vote, err)
	}
	if _, err := conn.ExecContext(t.Context(), insert); err == nil {
		t.Error("something is done after the end")
	}
	if err := b.Commit(t.Context(), branchOf("t")); err != nil || b.text(t, `select count(*) from account`) != "1" {
		t.Errorf("%v, %s rows", err, b.text(t, `select count(*) from account`))
	}
	if _, err := conn.ExecContext(t.Context(), insert); !errors.Is(err, sql.ErrConnDone) {
		t.Errorf("in a session that is somebody else's: %v", err)
	}
}

// TestEndedBehindOurBack: after an XA END by the user every call has its answer, and the
// session does not go back to the pool with a branch.
func TestEndedBehindOurBack(t *testing.T) {
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	b.SetMaxOpenConns(1)
	for i, end := range []func(driver.Preparing) error{
		func(p driver.Preparing) error { _, err := p.Prepare(t.Context()); return err },
		func(p driver.Preparing) error { return p.CommitOne(t.Context()) },
		func(p driver.Preparing) error { return errors.Join(p.Abandon(t.Context()), errors.New("as it should")) },
	} {
		x := branchOf(fmt.Sprint("t", i))
		_, p := b.branch(t, x, insert, fmt.Sprintf(`xa end X'%x',X'%x',%d`, x.Transaction, "shop/b", 0x494c4f4b))
		if err := end(p); err == nil {
			t.Errorf("%d: no error", i)
		}
		b.do(t, `begin`, `commit`) // refused within a branch
	}
	if left := b.text(t, `select count(*) from account`); left != "0" || len(b.recovered(t)) != 0 {
		t.Errorf("%s rows and %v are left", left, b.recovered(t))
	}
}

// TestDeadlockVotesNo: a branch that the server has undone is not prepared, though its
// user ignored the error, and its session is good again.
func TestDeadlockVotesNo(t *testing.T) {
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	b.do(t, `insert into account values ('a', 1), ('b', 1)`)
	const update = `update account set balance = balance + 1 where id = `
	x, px := b.branch(t, branchOf("x"), update+`'a'`)
	y, py := b.branch(t, branchOf("y"), update+`'b'`)
	errs := make(chan error, 1)
	go func() { _, err := x.ExecContext(t.Context(), update+`'b'`); errs <- err }()
	_, err := y.ExecContext(t.Context(), update+`'a'`)
	if (<-errs == nil) == (err == nil) {
		t.Fatal("there was no deadlock")
	}
	victim, other := px, py
	if err != nil {
		victim, other = py, px
	}
	vote, err := victim.Prepare(t.Context())
	if vote != driver.VoteNo || interlock.Kind(err) != interlock.Retryable {
		t.Errorf("the victim votes %v, %v (%v)", vote, err, interlock.Kind(err))
	}
	if err := other.CommitOne(t.Context()); err != nil {
		t.Error(err)
	}
	if sum := b.text(t, `select sum(balance) from account`); sum != "4" || len(b.doubts(t)) != 0 {
		t.Errorf("the sum is %s, in doubt are %v", sum, b.doubts(t))
	}
}

// TestEveryChangeIsOne: a branch that changed anything is never taken for one that only
// read, and has to be decided.
func TestEveryChangeIsOne(t *testing.T) {
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	b.do(t, `insert into account values ('a', 1), ('b', 1), ('c', 1)`)
	for i, query := range []string{`update account set balance = 2 where id = 'a'`, `delete from account where id = 'b'`,
		`replace into account values ('c', 2)`, `insert into account values ('c', 3) on duplicate key update balance = 3`, insert} {
		x := branchOf(fmt.Sprint("t", i))
		b.prepared(t, x, query)
		if err := b.Rollback(t.Context(), x); err != nil {
			t.Error(err)
		}
	}
	if sum := b.text(t, `select concat(count(*), ' ', sum(balance)) from account`); sum != "3 3" {
		t.Errorf("%s after all was rolled back", sum)
	}
}
