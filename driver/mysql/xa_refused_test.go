package mysql_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestUnsafeServers: no participant opens on a server that can lose prepared branches, or replicate
// parts of them.
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

// TestBranchCannotBeLeft: statements that would end the branch, or commit, are refused, and the
// branch continues.
func TestBranchCannotBeLeft(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	conn, p := b.Branch(t, branchOf("t"), insert)
	for _, q := range []string{`commit`, `rollback`, `begin`, `create table x (i int)`, `truncate account`, `xa start 'other'`} {
		if _, err := conn.ExecContext(t.Context(), q); err == nil {
			t.Errorf("%s is done inside of a branch", q)
		}
	}
	preparedtest.WantVote(t, p, driver.VoteYes)
	if _, err := conn.ExecContext(t.Context(), insert); err == nil {
		t.Error("something is done after the end")
	}
	if err := b.Commit(t.Context(), branchOf("t")); err != nil || b.Text(t, `select count(*) from account`) != "1" {
		t.Errorf("%v, %s rows", err, b.Text(t, `select count(*) from account`))
	}
	if _, err := conn.ExecContext(t.Context(), insert); !errors.Is(err, sql.ErrConnDone) {
		t.Errorf("in a session of another user: %v", err)
	}
}

// TestEndedBehindOurBack: after an XA END by the user every call has its answer, and the session does
// not return to the pool with a branch.
func TestEndedBehindOurBack(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.DB.SetMaxOpenConns(1)
	for i, end := range []func(driver.Preparing) error{
		func(p driver.Preparing) error { _, err := p.Prepare(t.Context()); return err },
		func(p driver.Preparing) error { return p.CommitOne(t.Context()) },
		func(p driver.Preparing) error { return errors.Join(p.Abandon(t.Context()), errors.New("as it should")) },
	} {
		x := branchOf(fmt.Sprint("t", i))
		_, p := b.Branch(t, x, insert, fmt.Sprintf(`xa end X'%x',X'%x',%d`, x.Transaction, "shop/b", 0x494c4f4b))
		if err := end(p); err == nil {
			t.Errorf("%d: no error", i)
		}
		b.Do(t, `begin`, `commit`) // refused within a branch
	}
	if left := b.Text(t, `select count(*) from account`); left != "0" || len(b.recovered(t)) != 0 {
		t.Errorf("%s rows and %v are left", left, b.recovered(t))
	}
}

// TestDeadlockVotesNo: a branch that the server has undone is not prepared, although its user
// ignored the error, and its session can be used again.
func TestDeadlockVotesNo(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.Do(t, `insert into account values ('a', 1), ('b', 1)`)
	const update = `update account set balance = balance + 1 where id = `
	x, px := b.Branch(t, branchOf("x"), update+`'a'`)
	y, py := b.Branch(t, branchOf("y"), update+`'b'`)
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
	testbed.OK(t, other.CommitOne(t.Context()))
	if sum := b.Text(t, `select sum(balance) from account`); sum != "4" || len(b.Doubts(t)) != 0 {
		t.Errorf("the sum is %s, in doubt are %v", sum, b.Doubts(t))
	}
}

// TestEveryChangeIsOne: a branch that changed anything never counts as read-only, and needs a
// decision.
func TestEveryChangeIsOne(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.Do(t, `insert into account values ('a', 1), ('b', 1), ('c', 1)`)
	for i, query := range []string{`update account set balance = 2 where id = 'a'`, `delete from account where id = 'b'`,
		`replace into account values ('c', 2)`, `insert into account values ('c', 3) on duplicate key update balance = 3`, insert} {
		x := branchOf(fmt.Sprint("t", i))
		b.Prepared(t, x, query)
		testbed.OK(t, b.Rollback(t.Context(), x))
	}
	if sum := b.Text(t, `select concat(count(*), ' ', sum(balance)) from account`); sum != "3 3" {
		t.Errorf("%s after all was rolled back", sum)
	}
}
