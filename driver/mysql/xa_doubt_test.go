package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
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
