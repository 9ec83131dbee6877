package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
