package mysql_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func literal(namespace, transaction string) string {
	return fmt.Sprintf(`X'%x',X'%x',%d`, transaction, namespace+"/b", 0x494c4f4b)
}

// TestOtherNamespaces: branches of other namespaces or programs are neither listed nor finished.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	b, other := openBank(t, server.URL(), "shop"), openBank(t, server.URL(), "shop-2")
	x := branchOf("t")
	other.Prepared(t, x, insert)
	for _, xid := range []string{`'t','shop/b',1`, `'t7','shop/b',7`, `'t'`, `'t','shop',` + fmt.Sprint(0x494c4f4b), `'it''s, you',X'00ff',1`} {
		b.preparedByHand(t, xid, insert)
	}
	if all := b.Doubts(t); len(all) != 0 {
		t.Errorf("listed: %v", all)
	}
	preparedtest.WantHeuristic(t, b.Commit(t.Context(), x))
	testbed.OK(t, b.Rollback(t.Context(), x))
	if all := other.Doubts(t); len(all) != 1 || all[0] != x {
		t.Errorf("in doubt are %v", all)
	}
	other.Decide(t, true, x)
	if left := b.recovered(t); len(left) != 5 {
		t.Errorf("of the others there are %q", left)
	}
}

// TestHeldBySession: NOTA does not prove that there is no branch, while a session has it.
func TestHeldBySession(t *testing.T) {
	t.Parallel()
	b := openBank(t, mariaDB(t).URL(), "shop")
	conn := b.preparedByHand(t, literal("shop", "t"), insert,
		`insert into interlock_committed (branch, outcome, marked, session) values ('shop/b/t', 'committed', utc_timestamp(6), connection_id())`)
	for _, err := range []error{b.Commit(t.Context(), branchOf("t")), b.Rollback(t.Context(), branchOf("t"))} {
		wantKind(t, err, interlock.Retryable, 0)
	}
	if all := b.Doubts(t); len(all) != 1 {
		t.Errorf("in doubt are %v", all)
	}
	_, _, err := b.Begin(t.Context(), branchOf("t"))
	wantKind(t, err, interlock.Retryable, 1440)
	if err := conn.Raw(func(any) error { return errGone }); err == nil {
		t.Fatal("it is not closed")
	}
	b.Decide(t, true, branchOf("t"))
	b.WantRows(t, "1")
}

// TestCostOfABranch counts the requests in addition to those of the user.
func TestCostOfABranch(t *testing.T) {
	t.Parallel()
	b := openBank(t, mariaDB(t).URL()+"?interpolateParams=true", "shop")
	b.DB.SetMaxIdleConns(5)
	b.Do(t, `do 1`)
	asked := int64(0) // its own questions
	questions := func() (n int64) {
		t.Helper()
		if _, err := fmt.Sscan(b.Text(t, `select variable_value from information_schema.global_status where variable_name = 'QUESTIONS'`), &n); err != nil {
			t.Fatal(err)
		}
		asked++
		return n - asked
	}
	preparedtest.Costs(t, b.Bank, questions, 0)
	if n := b.DB.Stats().InUse; n != 0 {
		t.Errorf("%d connections are not given back", n)
	}
}

// TestSuccessIsNotBelieved: a server's answer that a branch has ended counts only if the branch's
// mark confirms it. Here another transaction has locked the mark.
func TestSuccessIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, finish := range []func(bank) error{
		func(b bank) error { return b.Commit(t.Context(), branchOf("t")) },
		func(b bank) error { return b.Rollback(t.Context(), branchOf("t")) },
	} {
		b := openBank(t, mariaDB(t).URL(), "shop")
		holder, err := b.DB.BeginTx(t.Context(), nil)
		testbed.OK(t, err)
		defer holder.Rollback()
		if _, err := holder.Exec(`insert into interlock_committed (branch, outcome, marked, session)
			values ('shop/b/t', 'committed', utc_timestamp(6), 0)`); err != nil {
			t.Fatal(err)
		}
		conn := b.preparedByHand(t, literal("shop", "t"), insert)
		_ = conn.Raw(func(any) error { return errGone })
		testbed.Eventually(t, "the server ends the session", bound, func() bool {
			if err := finish(b); interlock.Kind(err) != interlock.Retryable {
				t.Fatalf("reported as done: %v", err)
			}
			return len(b.recovered(t)) == 0
		})
	}
}

// TestKeptNoLonger: a session is kept for Keep, and then closed, so that others can finish its
// branch; Close closes it at once.
func TestKeptNoLonger(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	other, _ := keeping(t, server.URL(), time.Hour) // ends no session
	b, p := keeping(t, server.URL(), 300*time.Millisecond)
	b.Prepared(t, branchOf("1"), insert)
	wantKind(t, other.Commit(t.Context(), branchOf("1")), interlock.Retryable, 0)
	other.Decide(t, true, branchOf("1"))
	b.Prepared(t, branchOf("2"), insert)
	p.Close()
	b.Prepared(t, branchOf("3"), insert) // is not kept any more
	if n := b.DB.Stats().InUse; n != 0 {
		t.Errorf("%d connections are kept after Close", n)
	}
	for _, transaction := range []string{"2", "3"} {
		other.Decide(t, true, branchOf(transaction))
	}
	b.WantRows(t, "3")
}

// TestStoppedProcess: others finish a branch also if the process that prepared it is stopped, or its
// host has failed, so that its session does not end.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	b, _ := keeping(t, server.URL(), time.Hour)
	other, _ := keeping(t, server.URL(), -1)
	var sessions []any
	for _, transaction := range []string{"committed", "rolled-back"} {
		conn, p := b.Branch(t, branchOf(transaction), insert)
		var session int64
		testbed.OK(t, conn.QueryRowContext(t.Context(), `select connection_id()`).Scan(&session))
		sessions = append(sessions, session)
		preparedtest.WantVote(t, p, driver.VoteYes)
	}
	patient, _ := keeping(t, server.URL(), math.MaxInt64)
	for _, p := range []bank{other, patient} { // it may be running
		wantKind(t, p.Commit(t.Context(), branchOf("committed")), interlock.Retryable, 0)
	}
	if n := other.Text(t, `select count(*) from information_schema.processlist where id in (?, ?) and command <> 'Killed'`, sessions...); n != "2" {
		t.Errorf("%s of 2 sessions are left to a process that may be at work", n)
	}
	other.Decide(t, true, branchOf("committed"))
	other.Decide(t, false, branchOf("rolled-back"))
	// It wakes up, and detects that.
	b.Decide(t, true, branchOf("committed"))
	b.Decide(t, false, branchOf("rolled-back"))
	if n := b.Text(t, `select count(*) from account`); n != "1" || len(b.recovered(t)) != 0 {
		t.Errorf("%s rows, %v in doubt", n, b.recovered(t))
	}
}

// TestSessionIsClosedByItsUser: a session that was returned to the pool with a branch does not stay
// there: statements of others in it would never be committed.
func TestSessionIsClosedByItsUser(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.DB.SetMaxOpenConns(1)
	for i, end := range []func(driver.Preparing) error{
		func(p driver.Preparing) error { _, err := p.Prepare(t.Context()); return err },
		func(p driver.Preparing) error { return p.CommitOne(t.Context()) },
		func(p driver.Preparing) error { return p.Abandon(t.Context()) },
	} {
		conn, p := b.Branch(t, branchOf(string(rune('a'+i))), insert)
		testbed.OK(t, conn.Close())
		err := end(p)
		if abandoned := i == 2; !abandoned {
			wantKind(t, err, interlock.Bug, 0)
		}
		testbed.Eventually(t, "the session is ended", bound, func() bool {
			_, err := b.DB.ExecContext(t.Context(), `insert ignore into account values (`+string(rune('1'+i))+`, 1)`)
			return err == nil
		})
		b.DB.SetMaxIdleConns(0) // on a connection without an older snapshot
		if n, want := b.Text(t, `select count(*) from account`), string(rune('1'+i)); n != want {
			t.Errorf("%d: %s rows, want %s", i, n, want)
		}
		b.DB.SetMaxIdleConns(1)
	}
}

// TestNotDetached: a branch is not finished while the storage engine has it attached to a
// session that is no longer in the list. The server would answer with success and do nothing.
// Here the number of such a session is in the text of another one's statement, which the
// engine's status shows.
func TestNotDetached(t *testing.T) {
	t.Parallel()
	b := openBank(t, mariaDB(t).URL(), "shop")
	const gone = 4_000_000_000
	conn := b.preparedByHand(t, literal("shop", "t"), insert, fmt.Sprintf(`insert into interlock_committed (branch, outcome, marked, session)
		values ('shop/b/t', 'committed', utc_timestamp(6), %d)`, gone))
	_ = conn.Raw(func(any) error { return errGone })

	shown, end := context.WithCancel(t.Context())
	defer end()
	tx := database{b.DB}.mustBegin(t)
	mustExec(t, tx, insert)
	done := testbed.Later(t, bound, func() error {
		_, err := tx.Exec(shown, fmt.Sprintf(`do sleep(600) /* MariaDB thread id %d, */`, gone))
		return err
	})
	testbed.Eventually(t, "the engine shows the number", bound, func() bool {
		var engine, name, status string
		testbed.OK(t, b.DB.QueryRowContext(t.Context(), `show engine innodb status`).Scan(&engine, &name, &status))
		return strings.Contains(status, fmt.Sprint("thread id ", gone, ","))
	})
	for _, err := range []error{b.Commit(t.Context(), branchOf("t")), b.Rollback(t.Context(), branchOf("t"))} {
		wantKind(t, err, interlock.Retryable, 0)
	}
	if n := len(b.recovered(t)); n != 1 {
		t.Errorf("%d branches are prepared: XA COMMIT was sent while a session had it", n)
	}
	end()
	if err := done(); err == nil {
		t.Error("the statement has ended by itself")
	}
	b.Decide(t, true, branchOf("t"))
	b.WantRows(t, "1")
}

// TestDetached: a user with the privilege sees whether a branch is detached; others wait for a
// bounded time.
func TestDetached(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	b, p := keeping(t, server.URL(), time.Hour)
	b.Prepared(t, branchOf("t"), insert)
	b.Do(t, `create user stranger identified by 'x'`, `grant all on test.* to stranger`)
	far := config(t, server.URL())
	far.User, far.Passwd = "stranger", "x"
	stranger, err := mysql.OpenParticipant(t.Context(), open(t, far.FormatDSN()).DB, "shop", nil)
	testbed.OK(t, err)
	look := func(p *mysql.Participant) (got [2]bool) {
		got[0], got[1] = p.Detached(t.Context(), branchOf("t"))
		return got
	}
	if got := look(p); got != [2]bool{false, true} {
		t.Errorf("with a session: detached, known: %v", got)
	}
	if got := look(stranger); got[1] {
		t.Errorf("without the privilege: detached, known: %v", got)
	}
	p.Close()
	testbed.Eventually(t, "it is detached", bound, func() bool { return look(p) == [2]bool{true, true} })
	pauses := 0
	stranger.InPauses(func() { pauses++ })
	if err := stranger.Commit(t.Context(), branchOf("t")); err != nil || pauses != 1 {
		t.Errorf("%v, after %d pauses", err, pauses)
	}
}
