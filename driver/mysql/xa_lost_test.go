package mysql_test

import (
	"math"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
