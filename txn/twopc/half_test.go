package twopc

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestHalfIsSeen shows what two-phase commit does not give: a process is stopped before
// and after each of its messages, and at each a reader looks at both databases and at the
// journal. Nobody sees anything of the transfer before the decision is in the journal;
// between the first commit and the last everybody sees a half of it, but for those who
// lock what they read.
func TestHalfIsSeen(t *testing.T) {
	t.Parallel()
	b := build(t, testbed.Postgres(t), testbed.MariaDB(t))
	w := crash.Lead(t, "teller in turn", b.north.URL, b.south.URL, b.namespace())
	var seen []string
	for w.Next() {
		w.Pause()
		seen = append(seen, b.seen(t))
		w.Resume()
	}
	b.judge(t, []string{"1"})
	same(t, "seen", seen,
		"undecided, nothing moved", "undecided, nothing moved", // around the first prepare
		"undecided, nothing moved", "undecided, nothing moved", // around the second
		"undecided, nothing moved", "decided, nothing moved", // around the append of the decision
		"decided, nothing moved", "decided, half moved", // around the first commit
		"decided, half moved", "decided, all moved", // around the second
		"decided, all moved", "decided, all moved") // around the append of the end
}

// seen is what a reader of both databases and the journal finds.
func (b branches) seen(tb testing.TB) string {
	tb.Helper()
	_, records, err := journal.NewTable(b.north, "").Read(tb.Context(), Key("1"), 0)
	ok(tb, err)
	decision := "undecided"
	if slices.ContainsFunc(records, func(r driver.Record) bool { return r.Kind == recordDecide && Decision(r.Step) == Commit }) {
		decision = "decided"
	}
	moved := []string{"nothing", "half", "all"}[b.moved(tb, b.north, 990, "for share nowait")+b.moved(tb, b.south, 1010, "lock in share mode nowait")]
	return fmt.Sprintf("%s, %s moved", decision, moved)
}

// moved is 1 if a reader sees in one database what the transfer leaves there, and 0 if
// what was before. Who locks what he reads sees the same, or has to wait: never what was
// before.
func (b branches) moved(tb testing.TB, db *databases.DB, want int64, lock string) int {
	tb.Helper()
	const balance = `select balance from account where id = 1`
	is, locked := databases.One[int64](tb, db, balance), int64(0)
	err := db.Try(tb.Context(), func(ctx context.Context, tx driver.SQL) (err error) {
		locked, err = databases.Value[int64](ctx, tx, balance+" "+lock)
		return err
	})
	if is != 1000 && is != want || (err == nil) != (is == want) || err == nil && locked != want {
		tb.Errorf("seen %d; locked %d, %v", is, locked, err)
	}
	if is == want {
		return 1
	}
	return 0
}
