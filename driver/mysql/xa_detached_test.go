package mysql_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNotDetached: a branch is not finished while the storage engine has it attached to a
// session that is gone from the list, because the server would say that it did so. Such a
// session is one here whose number did not exist when the list was read.
func TestNotDetached(t *testing.T) {
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	for attempt := range 100 {
		x := branchOf(fmt.Sprint("t", attempt))
		conn, err := b.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var session int64
		if err := conn.QueryRowContext(t.Context(), `select connection_id()`).Scan(&session); err != nil {
			t.Fatal(err)
		}
		session += 40
		xid := literal("shop", x.Transaction)
		for _, q := range []string{`xa start ` + xid, insert, fmt.Sprintf(`insert into interlock_committed (branch, outcome, marked, session)
			values ('shop/b/%s', 'committed', utc_timestamp(6), %d)`, x.Transaction, session), `xa end ` + xid, `xa prepare ` + xid} {
			if _, err := conn.ExecContext(t.Context(), q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		_ = conn.Raw(func(any) error { return errGone })
		var holder *sql.Tx
		b.InPauses(func() {
			time.Sleep(110 * time.Millisecond) // the server shows no newer rows before
			if holder == nil {
				holder = b.heldBy(t, session)
			}
		})
		err = b.Commit(t.Context(), x)
		if holder == nil { // somebody else has that number
			continue
		}
		if wantKind(t, err, interlock.Retryable, 0); len(b.recovered(t)) == 0 {
			t.Errorf("XA COMMIT was sent while a session had the branch")
		}
		if err := holder.Rollback(); err != nil {
			t.Fatal(err)
		}
		b.InPauses(func() { time.Sleep(110 * time.Millisecond) })
		persist(t, func() error { return b.Commit(t.Context(), x) })
		return
	}
	t.Fatal("no session had the number that was wanted")
}

// heldBy opens sessions until one has that number, and begins a transaction there. It
// returns nil if somebody else has the number.
func (b bank) heldBy(t *testing.T, session int64) *sql.Tx {
	t.Helper()
	for id := int64(0); id < session; {
		conn, err := b.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.QueryRowContext(t.Context(), `select connection_id()`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		if id != session {
			continue
		}
		tx, err := conn.BeginTx(t.Context(), nil)
		if err == nil {
			_, err = tx.Exec(insert)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	return nil
}

// TestDetached: what the server shows of a branch's session is believed only if it is new,
// and is not waited for without end by one who may not see it.
func TestDetached(t *testing.T) {
	server := testbed.MariaDB(t)
	b := openBank(t, server.URL(), "shop")
	patient, err := mysql.OpenParticipant(t.Context(), b.DB, "shop", &mysql.ParticipantOptions{Keep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b.Participant = patient
	b.prepared(t, branchOf("t"), insert)
	await := func(p *mysql.Participant, detached, known bool, before func()) {
		t.Helper()
		testbed.Eventually(t, fmt.Sprintf("detached: %v, known: %v", detached, known), bound, func() bool {
			before()
			d, k := p.Detached(t.Context(), branchOf("t"))
			return k == known && (!k || d == detached)
		})
	}
	quiet := func() { time.Sleep(110 * time.Millisecond) }
	look := func() { b.text(t, `select count(*) from information_schema.innodb_trx`) }
	await(b.Participant, false, true, quiet)
	await(b.Participant, false, false, look)

	b.do(t, `create user stranger identified by 'x'`, `grant all on test.* to stranger`)
	far := config(t, server.URL())
	far.User, far.Passwd = "stranger", "x"
	stranger, err := mysql.OpenParticipant(t.Context(), open(t, far.FormatDSN()).DB, "shop", nil)
	if err != nil {
		t.Fatal(err)
	}
	await(stranger, false, false, quiet)
	b.Close()
	await(b.Participant, true, true, quiet)
	pauses := 0
	stranger.InPauses(func() { pauses++ })
	if err := stranger.Commit(t.Context(), branchOf("t")); err != nil || pauses != 5 {
		t.Errorf("%v, after %d pauses", err, pauses)
	}
}
