package barrier_test

import (
	"context"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// testCosts counts the statements that the barrier adds to those of the business. One of them
// bounds how long the transaction may idle.
func testCosts(t *testing.T, w world) {
	c := &databases.Counted{BeginnerAt: w.BeginnerAt}
	do := func(ctx context.Context) error {
		_, err := barrier.Do(ctx, c, w.table, seat, func(context.Context, driver.SQL) (Hold, error) { return Hold{"h"}, nil })
		return err
	}
	silent := func(ctx context.Context) error {
		_, err := barrier.Do(ctx, c, w.table, seat, func(context.Context, driver.SQL) (struct{}, error) { return struct{}{}, nil })
		return err
	}
	refused := func(ctx context.Context) error {
		_, err := barrier.Do(ctx, c, w.table, seat, func(context.Context, driver.SQL) (Hold, error) { return Hold{}, branch.Fail(errNoSeat) })
		return err
	}
	undo := func(ctx context.Context) error {
		return barrier.Undo(ctx, c, w.table, func(context.Context, driver.SQL, *Hold) error { return nil })
	}
	confirm := func(ctx context.Context) error {
		return barrier.Confirm(ctx, c, w.table, func(context.Context, driver.SQL, Hold) error { return nil })
	}
	out := func(ctx context.Context) error {
		_, err := barrier.DoOutside(ctx, c, w.table, seat, func(context.Context, string) (Hold, error) { return Hold{"h"}, nil })
		return err
	}
	for _, k := range []struct {
		what                string
		branch              string
		op                  branch.Operation
		call                func(context.Context) error
		statements, commits int64
		fails               bool
	}{
		{"do with an output", "a", branch.Do, do, 3, 1, false},
		{"do again", "a", branch.Do, do, 2, 0, false},
		{"undo", "a", branch.Undo, undo, 2, 1, false},
		{"undo again", "a", branch.Undo, undo, 2, 0, false},
		{"do behind the undo", "a", branch.Do, do, 2, 0, true},
		{"do without an output", "b", branch.Do, silent, 2, 1, false},
		{"confirm", "b", branch.Confirm, confirm, 2, 1, false},
		{"confirm again", "b", branch.Confirm, confirm, 2, 0, false},
		{"do that is refused", "c", branch.Do, refused, 4, 1, true},
		{"do that was refused", "c", branch.Do, refused, 2, 0, true},
		{"undo of nothing", "d", branch.Undo, undo, 2, 1, false},
		{"confirm of nothing", "e", branch.Confirm, confirm, 4, 0, true},
		{"do outside", "f", branch.Do, out, 4, 2, false},
		{"do outside again", "f", branch.Do, out, 2, 0, false},
	} {
		c.Reset()
		err := k.call(calling(t.Context(), k.branch, k.op))
		if statements, commits := c.Statements.Load(), c.Commits.Load(); (err != nil) != k.fails || statements != k.statements || commits != k.commits {
			t.Errorf("%s: %d statements and %d commits, want %d and %d: %v", k.what, statements, commits, k.statements, k.commits, err)
		}
	}
}

// testCostsLent: in the user's transaction a savepoint precedes the function, so that its
// effects can be undone.
func testCostsLent(t *testing.T, w world) {
	c := &databases.Counted{BeginnerAt: w.BeginnerAt}
	for _, k := range []struct {
		what       string
		op         branch.Operation
		statements int64
	}{{"do", branch.Do, 3}, {"do again", branch.Do, 1}, {"undo", branch.Undo, 1}, {"undo again", branch.Undo, 1}} {
		c.Reset()
		tx, err := c.BeginAt(t.Context(), driver.SessionIsolation)
		ok(t, err)
		ctx := calling(t.Context(), "a", k.op)
		if k.op == branch.Do {
			_, err = barrier.DoIn(ctx, tx, w.table, seat, func(context.Context) (Hold, error) { return Hold{"h"}, nil })
		} else {
			err = barrier.UndoIn(ctx, tx, w.table, func(context.Context, *Hold) error { return nil })
		}
		ok(t, err)
		ok(t, tx.Commit(t.Context()))
		if n := c.Statements.Load(); n != k.statements {
			t.Errorf("%s: %d statements, want %d", k.what, n, k.statements)
		}
	}
}
