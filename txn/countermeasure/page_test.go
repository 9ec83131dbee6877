package countermeasure_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// TestPage: each block of code of docs/explanation/countermeasures.md is a function of
// page_code_test.go, and each function is on the page.
func TestPage(t *testing.T) {
	generated.CheckCode(t, "../../docs/explanation/countermeasures.md", "page_code_test.go")
}

// hall has the data of the page's code.
type hall struct {
	*testing.T
	pool *pgxpool.Pool
}

func newHall(t *testing.T) hall {
	pool, err := pgxpool.New(t.Context(), testbed.Postgres(t).URL())
	ok(t, err)
	t.Cleanup(pool.Close)
	h := hall{t, pool}
	ok(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `
			create table orders (id bigint primary key, status text, by_saga text); insert into orders values (42, 'new', '');
			create table account (id bigint primary key, balance bigint); insert into account values (42, 100);
			create table price (item text primary key, cents bigint); insert into price values ('chair', 1999);
			create table customer (id bigint primary key, address text, version bigint); insert into customer values (42, 'old', 3);
			create table seat (id text primary key, guest text); insert into seat values ('12A', null)`)
		db := postgres.Tx(tx)
		return errors.Join(err, countermeasure.SemanticLock{}.Create(t.Context(), db), countermeasure.VersionFile{}.Create(t.Context(), db),
			countermeasure.ByValue{}.Create(t.Context(), db),
			countermeasure.Staging{Table: "price", Key: []string{"item"}, Columns: []string{"cents"}}.Create(t.Context(), db))
	}))
	return h
}

// says requires the result of a query, as text.
func (h hall) says(query, want string) {
	h.Helper()
	var got *string
	if err := h.pool.QueryRow(h.Context(), query).Scan(&got); err != nil || got == nil && want != "" || got != nil && *got != want {
		h.Errorf("%s: %v, %v; want %q", query, got, err, want)
	}
}

func (h hall) call(transaction, name string, operation branch.Operation) context.Context {
	return branch.With(h.Context(), branch.Call{Transaction: transaction, Branch: name, Operation: operation})
}

// TestPageWorks runs the code of the page: each call, and each repeated call, has the effect that
// the page describes.
func TestPageWorks(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	t.Run("semantic lock", h.testSemanticLock)
	t.Run("the others", h.testOthers)
}

func (h hall) testSemanticLock(t *testing.T) {
	first, second := h.call("cancel/1", "begin", branch.Do), h.call("cancel/2", "begin", branch.Do)
	alive := func(context.Context, string) (bool, error) { return false, nil }
	for range 2 {
		ok(t, beginCancelling(first, h.pool, alive))
	}
	err := beginCancelling(second, h.pool, alive)
	if class, _ := branch.ClassOf(err); class != branch.ClassRetry || !errors.Is(err, interlock.ErrHeld) {
		t.Errorf("%v", err)
	}
	if status, err := readSettled(t.Context(), h.pool); !errors.Is(err, interlock.ErrHeld) {
		t.Errorf("read %q, %v", status, err)
	}
	ok(t, finishCancelling(second, h.pool)) // whose order it is not
	h.says(`select status || ' ' || by_saga from orders`, "cancelling cancel/1")
	for range 2 {
		ok(t, finishCancelling(first, h.pool))
	}
	if status, err := readSettled(t.Context(), h.pool); status != "cancelled" || err != nil {
		t.Errorf("read %q, %v", status, err)
	}
	ok(t, beginCancelling(first, h.pool, alive))
	ok(t, beginCancelling(second, h.pool, func(context.Context, string) (bool, error) { return true, nil }))
	h.says(`select by_saga from orders`, "cancel/2")
}

func (h hall) testOthers(t *testing.T) {
	for range 2 {
		ok(t, debit(h.call("o1", "debit", branch.Do), h.pool, 70))
	}
	refused := func(why string) {
		err := debit(h.call("o2", "debit", branch.Do), h.pool, 70)
		if class, _ := branch.ClassOf(err); class != branch.ClassFail || !strings.Contains(err.Error(), why) {
			t.Errorf("%v", err)
		}
	}
	refused("is 30")
	for range 2 {
		ok(t, debit(h.call("o1", "debit", branch.Undo), h.pool, 70))
	}
	refused("before")
	h.says(`select balance::text from account`, "100")

	ok(t, stagePrices(h.call("c1", "find out", branch.Do), h.pool))
	ok(t, stagePrices(h.call("c2", "find out", branch.Do), h.pool))
	ok(t, stagePrices(h.call("c2", "find out", branch.Undo), h.pool))
	h.says(`select sum(cents)::text from price`, "1999")
	for range 2 {
		ok(t, stagePrices(h.call("c1", "publish", branch.Do), h.pool))
		ok(t, stagePrices(h.call("c2", "publish", branch.Do), h.pool))
	}
	h.says(`select sum(cents)::text from price`, "6498")

	ok(t, checkSteps())
	ok(t, storeChecked(t.Context(), h.pool, "new", 3))
	err := storeChecked(t.Context(), h.pool, "newer", 3)
	if class, _ := branch.ClassOf(err); class != branch.ClassFail {
		t.Errorf("%v", err)
	}
	h.says(`select address from customer`, "new")

	for range 2 {
		ok(t, reserveSeat(h.call("b1", "seat", branch.Undo), h.pool, "bob"))
		ok(t, reserveSeat(h.call("b1", "seat", branch.Do), h.pool, "bob"))
		h.says(`select guest from seat`, "")
	}
	ok(t, reserveSeat(h.call("b2", "seat", branch.Do), h.pool, "eve"))
	h.says(`select guest from seat`, "eve")
	ok(t, reserveSeat(h.call("b2", "seat", branch.Undo), h.pool, "eve"))
	h.says(`select guest from seat`, "")

	for cents, want := range map[int64]countermeasure.Protocol{1999: countermeasure.Saga, 25_000_00: countermeasure.TwoPhase} {
		ok(t, pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) error {
			got, err := decideTransfer(t.Context(), tx, string(want), cents)
			if got != want {
				t.Errorf("%d: %s", cents, got)
			}
			return err
		}))
	}
}
