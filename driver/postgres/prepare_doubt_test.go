package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestOtherNamespaces: branches of others, in other namespaces and databases, or by
// other programs, are neither listed nor finished.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL(), "shop")
	b.Do(t, `create database elsewhere`)
	others := map[string]bank{
		"a longer namespace": openBank(t, server.URL(), "shop-2"),
		"another database":   openBank(t, strings.Replace(server.URL(), "/postgres?", "/elsewhere?", 1), "shop"),
	}
	n := 0
	for name, other := range others {
		n++
		x := one(fmt.Sprint("t", n))
		other.Prepared(t, x, insert)
		if all := b.Doubts(t); len(all) != 0 {
			t.Errorf("%s: listed as %v", name, all)
		}
		if err := b.Commit(t.Context(), x); err == nil {
			t.Errorf("%s: committed", name)
		}
		if err := b.Rollback(t.Context(), x); name == "another database" && err == nil {
			t.Errorf("%s: rolled back", name)
		}
		if all := other.Doubts(t); len(all) != 1 || all[0] != x {
			t.Errorf("%s: in doubt are %v", name, all)
		}
		if err := other.Commit(t.Context(), x); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, gid := range []string{"interlock/shop", "interlock/shop/b", "interlock/shop//t", "interlock/shop/b/a b", "somebody"} {
		b.Do(t, `begin; `+insert+`; prepare transaction '`+gid+`'`)
	}
	if all := b.Doubts(t); len(all) != 0 {
		t.Errorf("by other programs: listed as %v", all)
	}
}

// TestAnotherRole finds out that it may not finish a branch, which stays in doubt.
func TestAnotherRole(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL(), "shop")
	b.Do(t, `create role clerk login`, `grant all on all tables in schema public to clerk`)
	p, err := postgres.OpenParticipant(t.Context(), poolAt(t, strings.Replace(server.URL(), "postgres@", "clerk@", 1)), "shop", nil)
	testbed.OK(t, err)
	clerk := bank{Preparer: p} // it may create no tables
	b.Prepared(t, one("t"), insert)
	wantKind(t, clerk.Commit(t.Context(), one("t")), interlock.Definite, "42501")
	wantKind(t, clerk.Rollback(t.Context(), one("t")), interlock.Definite, "42501")
	if all := clerk.Doubts(t); len(all) != 1 {
		t.Errorf("in doubt are %v", all)
	}
	testbed.OK(t, b.Commit(t.Context(), one("t")))
}

// TestNameIsTaken: while one session is between its mark and its PREPARE, or rolls a
// branch back, another neither prepares the branch without a mark, nor waits.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	server := postgres.EmptyServer(t)
	b := openBank(t, server.URL(), "shop")
	other, err := poolAt(t, server.URL()).Begin(t.Context())
	testbed.OK(t, err)
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), `select pg_advisory_xact_lock($1)`, postgres.Key("/prepared", "interlock/shop/b/t")); err != nil {
		t.Fatal(err)
	}
	_, p := b.Branch(t, one("t"), insert)
	preparedtest.WantNo(t, p, interlock.Retryable, "")
	wantKind(t, b.Rollback(t.Context(), one("t")), interlock.Retryable, "")
	if all := b.Doubts(t); len(all) != 0 {
		t.Errorf("in doubt are %v", all)
	}
	testbed.OK(t, other.Rollback(t.Context()))
	testbed.OK(t, b.Rollback(t.Context(), one("t")))
}
