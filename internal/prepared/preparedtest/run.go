package preparedtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Run runs the tests of a database.
func Run[T any](t *testing.T, d Database[T]) {
	for name, test := range map[string]func(*testing.T, Database[T]){
		"OpenedWrongly":             testOpenedWrongly[T],
		"FinishedByHand":            testFinishedByHand[T],
		"MarksAreGone":              testMarksAreGone[T],
		"ForgetKeepsWhatMayBeAsked": testForget[T],
		"LostReplies":               testLostReplies[T],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}

func testOpenedWrongly[T any](t *testing.T, d Database[T]) {
	server := d.Start(t)
	for _, namespace := range []string{"", "a/b", "a'b", "ä", strings.Repeat("x", driver.MaxXIDNamespace+1)} {
		_, _, err := d.Open(t.Context(), t, server.URL(), namespace, "")
		testbed.WantKind(t, err, interlock.Bug, interlock.ErrName)
	}
	_, _, err := d.Open(t.Context(), t, server.URL(), "n", "a.b.c")
	WantState(t, err, interlock.Bug, "")
	_, _, err = d.Open(t.Context(), t, "", "n", "")
	WantState(t, err, interlock.Bug, "")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = d.Open(ended, t, server.URL(), "n", "")
	WantState(t, err, interlock.Definite, "")
	proxy := testbed.NewProxy(t, server.Addr())
	proxy.Cut()
	_, _, err = d.Open(t.Context(), t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1), "n", "")
	WantState(t, err, interlock.Retryable, "")
}

// testFinishedByHand requires that an operator's end of a branch in doubt is reported, and
// not returned as the decision.
func testFinishedByHand[T any](t *testing.T, d Database[T]) {
	b := d.OpenBank(t, d.Start(t).URL(), "shop")
	committed, rolledBack := One("committed"), One("rolled-back")
	for x, verb := range map[driver.XID]string{committed: "commit", rolledBack: "rollback"} {
		b.Prepared(t, x, d.Insert)
		testbed.Eventually(t, verb+" by hand", bound, func() bool { // the session that prepared it may still be open
			_, err := b.DB.ExecContext(t.Context(), d.ByHand(verb, x.Transaction))
			return err == nil
		})
	}
	for range 2 {
		WantHeuristic(t, b.Rollback(t.Context(), committed))
		WantHeuristic(t, b.Commit(t.Context(), rolledBack))
		testbed.OK(t, b.Commit(t.Context(), committed))
	}
	testbed.OK(t, b.Rollback(t.Context(), rolledBack))
}

// testMarksAreGone requires that without the table nothing is prepared, and earlier
// outcomes are unknown.
func testMarksAreGone[T any](t *testing.T, d Database[T]) {
	b := d.openBank(t, d.Start(t).URL(), "shop", d.Schema+".marks of ours")
	x := One("t")
	b.Prepared(t, x, d.Insert)
	b.Decide(t, true, x)
	b.Do(t, "drop table "+d.Quote+"marks of ours"+d.Quote)
	WantState(t, b.Commit(t.Context(), x), interlock.Uncertain, d.Missing)
	WantState(t, b.Rollback(t.Context(), x), interlock.Uncertain, d.Missing)
	_, p := b.Branch(t, One("next"), d.Insert)
	WantNo(t, p, interlock.Definite, d.Missing)
}

// testForget requires that the age of a mark begins when a Forget sees the branch
// committed. Forget does not wait for a branch in doubt.
func testForget[T any](t *testing.T, d Database[T]) {
	server := d.Start(t)
	b, other := d.OpenBank(t, server.URL(), "shop"), d.OpenBank(t, server.URL(), "shop-2")
	forget := func(before time.Time, want int64) {
		t.Helper()
		if n, err := b.Forget(t.Context(), before); n != want || err != nil {
			t.Errorf("forgot %d, %v; want %d", n, err, want)
		}
	}
	later, old, doubt := time.Now().Add(time.Hour), One("old"), One("doubt")
	b.Prepared(t, old, d.Insert)
	b.Prepared(t, doubt, d.Insert)
	other.Prepared(t, old, d.Insert)
	b.Decide(t, true, old)
	other.Decide(t, true, old)
	testbed.OK(t, b.Rollback(t.Context(), One("never")))
	forget(later, 0)                      // sees them
	forget(time.Now().Add(-time.Hour), 0) // not yet that old
	b.Decide(t, true, doubt)
	forget(later, 2)
	for range 2 { // it was committed after the last Forget
		b.Decide(t, true, doubt)
	}
	forget(later, 1)
	WantHeuristic(t, b.Commit(t.Context(), old))
	other.Decide(t, true, old) // the mark of another namespace is kept
}

// testLostReplies cuts the connection after each part of the replies. Whatever Prepare
// returns, the branch is atomic, and is listed while it is in doubt.
func testLostReplies[T any](t *testing.T, d Database[T]) {
	server := d.Start(t)
	b := d.OpenBank(t, server.URL(), "shop")
	proxy := testbed.NewProxy(t, server.Addr())
	far := d.OpenBank(t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1), "shop")
	votes := map[driver.Vote]int{}
	unknown, doubts := 0, 0
	for after := 0; votes[driver.VoteYes] < 3; after += 4 {
		x := One(fmt.Sprint("t", after))
		_, p := far.Branch(t, x, fmt.Sprintf(`insert into account values ('%d', 1)`, after))
		proxy.CutAfter(after)
		vote, err := p.Prepare(t.Context())
		proxy.Heal()
		votes[vote]++
		want := "1"
		if vote != driver.VoteYes {
			want = "0"
			if interlock.Kind(err) == interlock.Uncertain {
				unknown++
			}
			doubts += len(b.Doubts(t))
		}
		b.Decide(t, vote == driver.VoteYes, x)
		if got := b.Text(t, fmt.Sprintf(`select count(*) from account where id = '%d'`, after)); got != want || len(b.Doubts(t)) != 0 {
			t.Fatalf("cut after %d: vote %v (%v), %s rows, %v in doubt", after, vote, err, got, b.Doubts(t))
		}
	}
	t.Logf("votes: %v, unknown: %d, of which prepared: %d", votes, unknown, doubts)
	if unknown == 0 || doubts == 0 {
		t.Error("no reply to PREPARE was lost")
	}
}

// Costs counts statements besides the user's: BEGIN, the mark and PREPARE; COMMIT or
// ROLLBACK of the prepared branch. A branch without changes, or alone, is committed without
// being prepared. more is the number that the client adds to a prepared branch.
func Costs[T any](t *testing.T, b Bank[T], count func() int64, more int64) {
	for i, c := range []struct {
		what string
		want int64
		do   func(x driver.XID) error
	}{
		{"committed", 1 + 4 + more, func(x driver.XID) error { b.Prepared(t, x, b.of.Insert); return b.Commit(t.Context(), x) }},
		{"rolled back", 1 + 4 + more, func(x driver.XID) error { b.Prepared(t, x, b.of.Insert); return b.Rollback(t.Context(), x) }},
		{"read only", 3, func(x driver.XID) error {
			_, p := b.Branch(t, x)
			WantVote(t, p, driver.VoteReadOnly)
			return nil
		}},
		{"alone", 1 + 2, func(x driver.XID) error { _, p := b.Branch(t, x, b.of.Insert); return p.CommitOne(t.Context()) }},
		{"abandoned", 1 + 2, func(x driver.XID) error { _, p := b.Branch(t, x, b.of.Insert); return p.Abandon(t.Context()) }},
		{"rollback of none", 1, func(x driver.XID) error { return b.Rollback(t.Context(), x) }},
	} {
		before := count()
		err := c.do(One(fmt.Sprint("cost-", i)))
		if got := count() - before; got != c.want || err != nil {
			t.Errorf("%s: %d statements, want %d (%v)", c.what, got, c.want, err)
		}
	}
}

// Waiting requires that branches that wait for a row of a prepared one leave a connection of the pool,
// which has four, to finish it.
func Waiting[T any](t *testing.T, b Bank[T]) {
	t.Helper()
	b.Do(t, `delete from account`, `insert into account values ('hot', 0)`)
	const update = `update account set balance = balance + 1 where id = 'hot'`
	b.Prepared(t, One("prepared"), update)
	var ends []func() error
	for i := range 3 {
		in, p := b.Branch(t, One(fmt.Sprint("waits-", i)))
		ends = append(ends, testbed.Later(t, bound, func() error {
			return errors.Join(b.of.Exec(t.Context(), in, update), p.CommitOne(t.Context()))
		}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := b.Begin(ctx, One("late")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a branch took the last connection of the pool: %v", err)
	}
	b.Decide(t, true, One("prepared"))
	for _, end := range ends {
		testbed.OK(t, end())
	}
	if n := b.Text(t, `select balance from account`); n != "4" {
		t.Errorf("%s of 4 branches are committed", n)
	}
}
