package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestFinishedByHand: what a person did to a branch in doubt is found, and never taken
// for what was decided.
func TestFinishedByHand(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.Postgres(t).URL(), "shop", nil)
	for _, transaction := range []string{"committed", "rolled-back"} {
		b.prepared(t, one(transaction), insert)
	}
	b.do(t, `commit prepared 'interlock/shop/b/committed'`, `rollback prepared 'interlock/shop/b/rolled-back'`)
	for range 2 {
		wantHeuristic(t, b.Rollback(t.Context(), one("committed")))
		wantHeuristic(t, b.Commit(t.Context(), one("rolled-back")))
		if err := b.Commit(t.Context(), one("committed")); err != nil {
			t.Error(err)
		}
	}
	if err := b.Rollback(t.Context(), one("rolled-back")); err != nil {
		t.Error(err)
	}
}

// TestOtherNamespaces: branches of others, in other namespaces and databases, or by
// other programs, are neither listed nor finished.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	b := openBank(t, server.URL(), "shop", nil)
	b.do(t, `create database elsewhere`)
	others := map[string]bank{
		"a longer namespace": openBank(t, server.URL(), "shop-2", nil),
		"another database":   openBank(t, strings.Replace(server.URL(), "/postgres?", "/elsewhere?", 1), "shop", nil),
	}
	n := 0
	for name, other := range others {
		n++
		x := one(fmt.Sprint("t", n))
		other.prepared(t, x, insert)
		if all := b.doubts(t); len(all) != 0 {
			t.Errorf("%s: listed as %v", name, all)
		}
		if err := b.Commit(t.Context(), x); err == nil {
			t.Errorf("%s: committed", name)
		}
		if err := b.Rollback(t.Context(), x); name == "another database" && err == nil {
			t.Errorf("%s: rolled back", name)
		}
		if all := other.doubts(t); len(all) != 1 || all[0] != x {
			t.Errorf("%s: in doubt are %v", name, all)
		}
		if err := other.Commit(t.Context(), x); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, gid := range []string{"interlock/shop", "interlock/shop/b", "interlock/shop//t", "interlock/shop/b/a b", "somebody"} {
		b.do(t, `begin; `+insert+`; prepare transaction '`+gid+`'`)
	}
	if all := b.doubts(t); len(all) != 0 {
		t.Errorf("by other programs: listed as %v", all)
	}
}

// TestAnotherRole finds out that it may not finish a branch, which stays in doubt.
func TestAnotherRole(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	b := openBank(t, server.URL(), "shop", nil)
	b.do(t, `create role clerk login`, `grant all on all tables in schema public to clerk`)
	clerk := openBankAs(t, server, "clerk")
	b.prepared(t, one("t"), insert)
	wantKind(t, clerk.Commit(t.Context(), one("t")), interlock.Definite, "42501")
	wantKind(t, clerk.Rollback(t.Context(), one("t")), interlock.Definite, "42501")
	if all := clerk.doubts(t); len(all) != 1 {
		t.Errorf("in doubt are %v", all)
	}
	if err := b.Commit(t.Context(), one("t")); err != nil {
		t.Error(err)
	}
}

// openBankAs is openBank for a role that may make no tables, and finds them.
func openBankAs(t *testing.T, server *testbed.Server, role string) bank {
	t.Helper()
	pool := poolAt(t, strings.Replace(server.URL(), "postgres@", role+"@", 1))
	p, err := postgres.OpenParticipant(t.Context(), pool, "shop", nil)
	if err != nil {
		t.Fatal(err)
	}
	return bank{p, pool}
}

// TestMarksAreGone: without the table nothing is prepared, and nothing that was is
// called a heuristic outcome.
func TestMarksAreGone(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.Postgres(t).URL(), "shop", &postgres.ParticipantOptions{Marks: "public.Marks of ours"})
	b.prepared(t, one("t"), insert)
	if err := b.Commit(t.Context(), one("t")); err != nil {
		t.Fatal(err)
	}
	b.do(t, `drop table "Marks of ours"`)
	wantKind(t, b.Commit(t.Context(), one("t")), interlock.Uncertain, "42P01")
	wantKind(t, b.Rollback(t.Context(), one("t")), interlock.Uncertain, "42P01")
	_, p := b.branch(t, one("next"), insert)
	vote, err := p.Prepare(t.Context())
	if wantKind(t, err, interlock.Definite, "42P01"); vote != driver.VoteNo {
		t.Errorf("it votes %v", vote)
	}
}

// TestForgetKeepsWhatMayBeAsked: a mark is as old as a Forget has seen it committed,
// and not as old as the branch.
func TestForgetKeepsWhatMayBeAsked(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	b, other := openBank(t, server.URL(), "shop", nil), openBank(t, server.URL(), "shop-2", nil)
	forget := func(before time.Time, want int64) {
		t.Helper()
		if n, err := b.Forget(t.Context(), before); n != want || err != nil {
			t.Errorf("forgot %d, %v; want %d", n, err, want)
		}
	}
	later := time.Now().Add(time.Hour)
	b.prepared(t, one("old"), insert)
	b.prepared(t, one("doubt"), insert)
	other.prepared(t, one("old"), insert)
	for _, in := range []bank{b, other} {
		if err := in.Commit(t.Context(), one("old")); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Rollback(t.Context(), one("never")); err != nil {
		t.Fatal(err)
	}
	forget(later, 0)                      // sees them
	forget(time.Now().Add(-time.Hour), 0) // not as old as that
	if err := b.Commit(t.Context(), one("doubt")); err != nil {
		t.Fatal(err)
	}
	forget(later, 2)
	for range 2 { // it was committed after the last look
		if err := b.Commit(t.Context(), one("doubt")); err != nil {
			t.Fatal(err)
		}
	}
	forget(later, 1)
	wantHeuristic(t, b.Commit(t.Context(), one("old")))
	if err := other.Commit(t.Context(), one("old")); err != nil {
		t.Errorf("another namespace's mark is gone: %v", err)
	}
}

// TestLostRepliesToABranch cuts the connection after each part of the answers. Whatever
// is returned, all is done or nothing, and what is in doubt is found.
func TestLostRepliesToABranch(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	b := openBank(t, server.URL(), "shop", nil)
	proxy := testbed.NewProxy(t, server.Addr())
	far := openBank(t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1), "shop", nil)
	votes := map[driver.Vote]int{}
	unknown, doubts := 0, 0
	for after := 0; votes[driver.VoteYes] < 3; after += 5 {
		x := one(fmt.Sprint("t", after))
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
		if got := b.text(t, fmt.Sprintf(`select count(*)::text from account where id = '%d'`, after)); got != want || len(b.doubts(t)) != 0 {
			t.Fatalf("cut after %d: it voted %v (%v), and there are %s rows, %v in doubt", after, vote, err, got, b.doubts(t))
		}
	}
	t.Logf("votes: %v, unknown: %d, of which prepared: %d", votes, unknown, doubts)
	if unknown == 0 || doubts == 0 {
		t.Error("no answer to PREPARE was lost")
	}
}

// persist repeats what may be repeated.
func persist(t testing.TB, try func() error) {
	t.Helper()
	var err error
	testbed.Eventually(t, "an outcome", bound, func() bool {
		err = try()
		return err == nil || interlock.Kind(err) == interlock.Definite || interlock.Kind(err) == interlock.Bug
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNameIsTaken: while one session is between its mark and its PREPARE, or rolls a
// branch back, another neither prepares the branch without a mark, nor waits.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	b := openBank(t, testbed.Postgres(t).URL(), "shop", nil)
	other, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), `select pg_advisory_xact_lock($1)`, postgres.Key("/prepared", "interlock/shop/b/t")); err != nil {
		t.Fatal(err)
	}
	_, p := b.branch(t, one("t"), insert)
	vote, err := p.Prepare(t.Context())
	if wantKind(t, err, interlock.Retryable, ""); vote != driver.VoteNo {
		t.Errorf("it votes %v", vote)
	}
	wantKind(t, b.Rollback(t.Context(), one("t")), interlock.Retryable, "")
	if all := b.doubts(t); len(all) != 0 {
		t.Errorf("in doubt are %v", all)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Rollback(t.Context(), one("t")); err != nil {
		t.Error(err)
	}
}
