package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func literal(namespace, transaction string) string {
	return fmt.Sprintf(`X'%x',X'%x',%d`, transaction, namespace+"/b", 0x494c4f4b)
}

// TestFinishedByHand: what a person did to a branch in doubt is found, and never taken
// for what was decided.
func TestFinishedByHand(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	for _, transaction := range []string{"committed", "rolled-back"} {
		b.prepared(t, branchOf(transaction), insert)
	}
	for _, q := range []string{`xa commit ` + literal("shop", "committed"), `xa rollback ` + literal("shop", "rolled-back")} {
		persist(t, func() error { // the session that prepared it may not be gone
			if _, err := b.ExecContext(t.Context(), q); err != nil {
				return &interlock.Error{Kind: interlock.Retryable, Err: err}
			}
			return nil
		})
	}
	for range 2 {
		wantHeuristic(t, b.Rollback(t.Context(), branchOf("committed")))
		wantHeuristic(t, b.Commit(t.Context(), branchOf("rolled-back")))
		if err := b.Commit(t.Context(), branchOf("committed")); err != nil {
			t.Error(err)
		}
	}
	if err := b.Rollback(t.Context(), branchOf("rolled-back")); err != nil {
		t.Error(err)
	}
}

// TestOtherNamespaces: branches of others, in other namespaces or by other programs,
// are neither listed nor finished.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	b, other := openBank(t, server.URL(), "shop"), openBank(t, server.URL(), "shop-2")
	x := branchOf("t")
	other.prepared(t, x, insert)
	for _, xid := range []string{`'t','shop/b',1`, `'t7','shop/b',7`, `'t'`, `'t','shop',` + fmt.Sprint(0x494c4f4b), `'it''s, you',X'00ff',1`} {
		conn, err := b.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{`xa start ` + xid, insert, `xa end ` + xid, `xa prepare ` + xid} {
			if _, err := conn.ExecContext(t.Context(), q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		t.Cleanup(func() { conn.Close() })
	}
	if all := b.doubts(t); len(all) != 0 {
		t.Errorf("listed: %v", all)
	}
	wantHeuristic(t, b.Commit(t.Context(), x))
	if err := b.Rollback(t.Context(), x); err != nil {
		t.Error(err)
	}
	if all := other.doubts(t); len(all) != 1 || all[0] != x {
		t.Errorf("in doubt are %v", all)
	}
	persist(t, func() error { return other.Commit(t.Context(), x) })
	if left := b.recovered(t); len(left) != 5 {
		t.Errorf("of the others there are %q", left)
	}
}

// TestHeldBySession: NOTA is no proof that there is nothing, while a session has the
// branch.
func TestHeldBySession(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.MariaDB(t).URL(), "shop")
	conn, err := b.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	xid := literal("shop", "t")
	for _, q := range []string{`xa start ` + xid, insert,
		`insert into interlock_committed (branch, outcome, marked, session) values ('shop/b/t', 'committed', utc_timestamp(6), connection_id())`, `xa end ` + xid, `xa prepare ` + xid} {
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	for _, err := range []error{b.Commit(t.Context(), branchOf("t")), b.Rollback(t.Context(), branchOf("t"))} {
		wantKind(t, err, interlock.Retryable, 0)
	}
	if all := b.doubts(t); len(all) != 1 {
		t.Errorf("in doubt are %v", all)
	}
	_, _, err = b.Participant.Begin(t.Context(), branchOf("t"))
	wantKind(t, err, interlock.Retryable, 1440)
	if err := conn.Raw(func(any) error { return errGone }); err == nil {
		t.Fatal("it is not closed")
	}
	persist(t, func() error { return b.Commit(t.Context(), branchOf("t")) })
	if n := b.text(t, `select count(*) from account`); n != "1" {
		t.Errorf("%s rows", n)
	}
}

// TestMarksAreGone: without the table nothing is prepared, and nothing that was is
// called a heuristic outcome.
func TestMarksAreGone(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	b := openBank(t, server.URL(), "shop")
	p, err := mysql.OpenParticipant(t.Context(), b.DB, "shop", &mysql.ParticipantOptions{Marks: "test.Marks of ours"})
	if err != nil {
		t.Fatal(err)
	}
	b.Participant = p
	b.prepared(t, branchOf("t"), insert)
	persist(t, func() error { return b.Commit(t.Context(), branchOf("t")) })
	b.do(t, "drop table `Marks of ours`")
	for _, err := range []error{b.Commit(t.Context(), branchOf("t")), b.Rollback(t.Context(), branchOf("t"))} {
		wantKind(t, err, interlock.Uncertain, 1146)
	}
	_, branch := b.branch(t, branchOf("next"), insert)
	vote, err := branch.Prepare(t.Context())
	if wantKind(t, err, interlock.Definite, 1146); vote != driver.VoteNo {
		t.Errorf("it votes %v", vote)
	}
}

// TestForgetKeepsWhatMayBeAsked: a mark is as old as a Forget has seen it committed,
// and not as old as the branch. It waits for no branch in doubt.
func TestForgetKeepsWhatMayBeAsked(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	b, other := openBank(t, server.URL(), "shop"), openBank(t, server.URL(), "shop-2")
	forget := func(before time.Time, want int64) {
		t.Helper()
		if n, err := b.Forget(t.Context(), before); n != want || err != nil {
			t.Errorf("forgot %d, %v; want %d", n, err, want)
		}
	}
	commit := func(in bank, transaction string) {
		t.Helper()
		persist(t, func() error { return in.Commit(t.Context(), branchOf(transaction)) })
	}
	later := time.Now().Add(time.Hour)
	b.prepared(t, branchOf("old"), insert)
	b.prepared(t, branchOf("doubt"), insert)
	other.prepared(t, branchOf("old"), insert)
	commit(b, "old")
	commit(other, "old")
	if err := b.Rollback(t.Context(), branchOf("never")); err != nil {
		t.Fatal(err)
	}
	forget(later, 0)                      // sees them
	forget(time.Now().Add(-time.Hour), 0) // not as old as that
	commit(b, "doubt")
	forget(later, 2)
	for range 2 { // it was committed after the last look
		commit(b, "doubt")
	}
	forget(later, 1)
	wantHeuristic(t, b.Commit(t.Context(), branchOf("old")))
	commit(other, "old")
}

// TestLostRepliesToABranch cuts the connection after each part of the answers. Whatever
// is returned, all is done or nothing, and what is in doubt is found.
func TestLostRepliesToABranch(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	b := openBank(t, server.URL(), "shop")
	proxy := testbed.NewProxy(t, server.Addr())
	far := openBank(t, behind(server, proxy), "shop")
	votes := map[driver.Vote]int{}
	unknown, doubts := 0, 0
	for after := 0; votes[driver.VoteYes] < 3; after += 3 {
		x := branchOf(fmt.Sprint("t", after))
		_, p := far.branch(t, x, fmt.Sprintf(`insert into account values ('%d', 1)`, after))
		proxy.CutAfter(after)
		vote, err := p.Prepare(t.Context())
		proxy.Heal()
		votes[vote]++
		want := "0"
		if vote == driver.VoteYes {
			want = "1"
			persist(t, func() error { return b.Commit(t.Context(), x) })
		} else {
			if interlock.Kind(err) == interlock.Uncertain {
				unknown++
			}
			doubts += len(b.doubts(t))
			persist(t, func() error { return b.Rollback(t.Context(), x) })
		}
		if got := b.text(t, `select count(*) from account where id = ?`, fmt.Sprint(after)); got != want || len(b.doubts(t)) != 0 {
			t.Fatalf("cut after %d: it voted %v (%v), and there are %s rows, %v in doubt", after, vote, err, got, b.doubts(t))
		}
	}
	t.Logf("votes: %v, unknown: %d, of which prepared: %d", votes, unknown, doubts)
	if unknown == 0 || doubts == 0 {
		t.Error("no answer to XA PREPARE was lost")
	}
}

// TestCostOfABranch: requests besides those of the user.
func TestCostOfABranch(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.MariaDB(t).URL()+"?interpolateParams=true", "shop")
	b.SetMaxIdleConns(5)
	b.do(t, `do 1`)
	questions := func() (n int) {
		t.Helper()
		if _, err := fmt.Sscan(b.text(t, `select variable_value from information_schema.global_status where variable_name = 'QUESTIONS'`), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		what string
		want int
		do   func(x driver.XID)
	}{
		// BEGIN with XA START, the mark, XA END with XA PREPARE; XA COMMIT.
		{"committed", 1 + 4, func(x driver.XID) { b.prepared(t, x, insert); must(b.Commit(t.Context(), x)) }},
		{"rolled-back", 1 + 4, func(x driver.XID) { b.prepared(t, x, insert); must(b.Rollback(t.Context(), x)) }},
		{"read-only", 3, func(x driver.XID) {
			_, p := b.branch(t, x)
			if vote, err := p.Prepare(t.Context()); vote != driver.VoteReadOnly || err != nil {
				t.Errorf("it votes %v, %v", vote, err)
			}
		}},
		{"alone", 1 + 2, func(x driver.XID) { _, p := b.branch(t, x, insert); must(p.CommitOne(t.Context())) }},
		{"abandoned", 1 + 2, func(x driver.XID) { _, p := b.branch(t, x, insert); must(p.Abandon(t.Context())) }},
		{"committed", 1, func(x driver.XID) { must(b.Commit(t.Context(), x)) }},
		{"never", 1, func(x driver.XID) { must(b.Rollback(t.Context(), x)) }},
	} {
		before := questions()
		c.do(branchOf(c.what))
		if got := questions() - before - 1; got != c.want {
			t.Errorf("%s: %d requests, want %d", c.what, got, c.want)
		}
	}
	if n := b.Stats().InUse; n != 0 {
		t.Errorf("%d connections are not given back", n)
	}
}

// TestSuccessIsNotBelieved: a server that says that a branch has ended is right only if
// the branch's mark says so too. Here the mark is locked by somebody else.
func TestSuccessIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, finish := range []func(bank) error{
		func(b bank) error { return b.Commit(t.Context(), branchOf("t")) },
		func(b bank) error { return b.Rollback(t.Context(), branchOf("t")) },
	} {
		b := openBank(t, testbed.MariaDB(t).URL(), "shop")
		holder, err := b.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		if _, err := holder.Exec(`insert into interlock_committed (branch, outcome, marked, session)
			values ('shop/b/t', 'committed', utc_timestamp(6), 0)`); err != nil {
			t.Fatal(err)
		}
		conn, err := b.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		xid := literal("shop", "t")
		for _, q := range []string{`xa start ` + xid, insert, `xa end ` + xid, `xa prepare ` + xid} {
			if _, err := conn.ExecContext(t.Context(), q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		_ = conn.Raw(func(any) error { return errGone })
		testbed.Eventually(t, "the server ends the session", bound, func() bool {
			if err := finish(b); interlock.Kind(err) != interlock.Retryable {
				t.Fatalf("reported as done: %v", err)
			}
			return len(b.recovered(t)) == 0
		})
	}
}

// TestKeptNoLonger: a session is kept for a while, and then let go of, so that others
// can finish its branch; Close lets go at once.
func TestKeptNoLonger(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t)
	other := openBank(t, server.URL(), "shop")
	patient, err := mysql.OpenParticipant(t.Context(), other.DB, "shop", &mysql.ParticipantOptions{Keep: time.Hour}) // ends no session
	if err != nil {
		t.Fatal(err)
	}
	other.Participant = patient
	db := open(t, server.URL())
	p, err := mysql.OpenParticipant(t.Context(), db.DB, "shop", &mysql.ParticipantOptions{Keep: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	b := bank{p, db}
	b.prepared(t, branchOf("1"), insert)
	wantKind(t, other.Commit(t.Context(), branchOf("1")), interlock.Retryable, 0)
	persist(t, func() error { return other.Commit(t.Context(), branchOf("1")) })
	b.prepared(t, branchOf("2"), insert)
	b.Close()
	b.prepared(t, branchOf("3"), insert) // is not kept any more
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are kept after Close", n)
	}
	for _, transaction := range []string{"2", "3"} {
		persist(t, func() error { return other.Commit(t.Context(), branchOf(transaction)) })
	}
	if n := b.text(t, `select count(*) from account`); n != "3" {
		t.Errorf("%s rows", n)
	}
}
