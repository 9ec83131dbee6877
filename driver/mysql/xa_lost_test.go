package mysql_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestStoppedProcess: a branch is finished by others also if the process that prepared
// it is stopped, or its host is gone without a word, so that its session does not end.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	db := open(t, server.URL())
	stopped, err := mysql.OpenParticipant(t.Context(), db.DB, "shop", &mysql.ParticipantOptions{Keep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stopped.Close)
	beside := open(t, server.URL())
	other, err := mysql.OpenParticipant(t.Context(), beside.DB, "shop", &mysql.ParticipantOptions{Keep: -1})
	if err != nil {
		t.Fatal(err)
	}
	b := bank{stopped, db}
	db.do(t, `create table account (id varchar(40) primary key, balance int)`)
	var sessions []any
	for _, transaction := range []string{"committed", "rolled-back"} {
		conn, p := b.branch(t, branchOf(transaction), insert)
		var session int64
		if err := conn.QueryRowContext(t.Context(), `select connection_id()`).Scan(&session); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, session)
		if vote, err := p.Prepare(t.Context()); vote != driver.VoteYes || err != nil {
			t.Fatalf("it votes %v, %v", vote, err)
		}
	}
	wantKind(t, other.Commit(t.Context(), branchOf("committed")), interlock.Retryable, 0) // it may be at work
	if n := beside.text(t, `select count(*) from information_schema.processlist where id in (?, ?) and command <> 'Killed'`, sessions...); n != "2" {
		t.Errorf("%s of 2 sessions are left to a process that may be at work", n)
	}
	persist(t, func() error { return other.Commit(t.Context(), branchOf("committed")) })
	persist(t, func() error { return other.Rollback(t.Context(), branchOf("rolled-back")) })
	// It wakes up, and finds out.
	persist(t, func() error { return stopped.Commit(t.Context(), branchOf("committed")) })
	persist(t, func() error { return stopped.Rollback(t.Context(), branchOf("rolled-back")) })
	if n := b.text(t, `select count(*) from account`); n != "1" || len(b.recovered(t)) != 0 {
		t.Errorf("%s rows, %v in doubt", n, b.recovered(t))
	}
}

// TestSessionIsClosedByItsUser: a session that was given back to the pool with a branch
// does not stay there: what others run in it would never be committed.
func TestSessionIsClosedByItsUser(t *testing.T) {
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	b.SetMaxOpenConns(1)
	for i, end := range []func(driver.Preparing) error{
		func(p driver.Preparing) error { _, err := p.Prepare(t.Context()); return err },
		func(p driver.Preparing) error { return p.CommitOne(t.Context()) },
		func(p driver.Preparing) error { return p.Abandon(t.Context()) },
	} {
		conn, p := b.branch(t, branchOf(string(rune('a'+i))), insert)
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		err := end(p)
		if abandoned := i == 2; !abandoned {
			wantKind(t, err, interlock.Bug, 0)
		}
		testbed.Eventually(t, "the session is ended", bound, func() bool {
			_, err := b.ExecContext(t.Context(), `insert ignore into account values (`+string(rune('1'+i))+`, 1)`)
			return err == nil
		})
		b.SetMaxIdleConns(0) // by a connection that sees what was committed
		if n, want := b.text(t, `select count(*) from account`), string(rune('1'+i)); n != want {
			t.Errorf("%d: %s rows, want %s", i, n, want)
		}
		b.SetMaxIdleConns(1)
	}
}
