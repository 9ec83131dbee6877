package postgres

import (
	"database/sql"
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// What a branch costs, in statements besides those of the user: BEGIN, the mark,
// PREPARE TRANSACTION; COMMIT PREPARED. By database/sql two more, of an empty
// transaction. One that changed nothing, or is alone, is committed and not prepared.
func TestCostOfABranch(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	byPool, err := OpenParticipant(t.Context(), o, "shop", nil)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	byStd, err := OpenStdParticipant(t.Context(), db, "std", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Exec(t.Context(), `create table account (id int)`); err != nil {
		t.Fatal(err)
	}
	n := 0
	spend := func(do func(x driver.XID)) int64 {
		t.Helper()
		n++
		before := executed(t, o)
		do(driver.XID{Transaction: string(rune('a' + n)), Branch: "b"})
		return executed(t, o) - before
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := `insert into account values (1)`
	prepare := func(b driver.Preparing, want driver.Vote) {
		t.Helper()
		if vote, err := b.Prepare(t.Context()); vote != want || err != nil {
			t.Fatalf("it votes %v, %v", vote, err)
		}
	}
	inPool := func(x driver.XID, changing bool) driver.Preparing {
		tx, b, err := byPool.Begin(t.Context(), x)
		must(err)
		if changing {
			_, err = tx.Exec(t.Context(), write)
			must(err)
		}
		return b
	}
	for what, c := range map[string]struct {
		want int64
		do   func(x driver.XID)
	}{
		"prepared and committed": {1 + 4, func(x driver.XID) {
			prepare(inPool(x, true), driver.VoteYes)
			must(byPool.Commit(t.Context(), x))
		}},
		"prepared and rolled back": {1 + 4, func(x driver.XID) {
			prepare(inPool(x, true), driver.VoteYes)
			must(byPool.Rollback(t.Context(), x))
		}},
		"read only":        {3, func(x driver.XID) { prepare(inPool(x, false), driver.VoteReadOnly) }},
		"alone":            {1 + 2, func(x driver.XID) { must(inPool(x, true).CommitOne(t.Context())) }},
		"abandoned":        {1 + 2, func(x driver.XID) { must(inPool(x, true).Abandon(t.Context())) }},
		"rollback of none": {1, func(x driver.XID) { must(byPool.Rollback(t.Context(), x)) }}, // the refused one is not counted
		"by database/sql": {1 + 6, func(x driver.XID) {
			tx, b, err := byStd.Begin(t.Context(), x)
			must(err)
			_, err = tx.ExecContext(t.Context(), write)
			must(err)
			prepare(b, driver.VoteYes)
			must(byStd.Commit(t.Context(), x))
		}},
	} {
		if got := spend(c.do); got != c.want {
			t.Errorf("%s: %d statements, want %d", what, got, c.want)
		}
	}
}
