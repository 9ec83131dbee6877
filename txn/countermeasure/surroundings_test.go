package countermeasure_test

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// testCosts counts the statements of each call; none commits.
func testCosts(w world) {
	do := branch.Call{Transaction: "t", Branch: "b", Operation: branch.Do}
	undo := do
	undo.Operation = branch.Undo
	first, other := intent("saga/1"), intent("saga/2")
	for _, c := range []struct {
		name            string
		postgres, maria int64
		call            func(ctx context.Context, db driver.SQL) error
	}{
		{"acquire, for the first time", 1, 2, func(ctx context.Context, db driver.SQL) error { return w.locks.Acquire(ctx, db, first) }},
		{"refused", 2, 1, func(ctx context.Context, db driver.SQL) error {
			wantHeld(w, w.locks.Acquire(ctx, db, other), "saga/1")
			return nil
		}},
		{"check", 1, 2, func(ctx context.Context, db driver.SQL) error { return w.locks.Check(ctx, db, "account/a", "saga/1") }},
		{"release", 1, 1, w.releases("account/a", "saga/1")},
		{"acquire", 1, 3, func(ctx context.Context, db driver.SQL) error { return w.locks.Acquire(ctx, db, first) }},
		{"release again", 1, 1, w.releases("account/a", "saga/1")},
		{"vacant", 1, 2, func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "account/a") }},
		{"vacant, for the first time", 3, 1, func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "unheard of") }},
		{"add", 1, 1, func(ctx context.Context, db driver.SQL) error { return w.sum.Add(ctx, db, "a", 1) }},
		{"add refused", 2, 2, func(ctx context.Context, db driver.SQL) error {
			return ignored[*countermeasure.BoundError](w.sum.Add(ctx, db, "a", -1000))
		}},
		{"apply", 2, 3, func(ctx context.Context, db driver.SQL) error {
			_, err := w.sum.Apply(ctx, db, w.file, do, "a", 1)
			return err
		}},
		{"applied again", 1, 2, func(ctx context.Context, db driver.SQL) error {
			_, err := w.sum.Apply(ctx, db, w.file, do, "a", 1)
			return err
		}},
		{"apply refused", 4, 5, func(ctx context.Context, db driver.SQL) error {
			_, err := w.sum.Apply(ctx, db, w.file, branch.Call{Transaction: "much", Branch: "b", Operation: branch.Do}, "a", -1000)
			return ignored[*countermeasure.BoundError](err)
		}},
		{"reread refused", 2, 2, func(ctx context.Context, db driver.SQL) error {
			return ignored[*countermeasure.ChangedError](versioned.Unchanged(ctx, db, "a", 7))
		}},
		{"undo", 2, 3, func(ctx context.Context, db driver.SQL) error {
			_, err := w.sum.Apply(ctx, db, w.file, undo, "a", 1)
			return err
		}},
		{"reread", 1, 1, func(ctx context.Context, db driver.SQL) error { return versioned.Unchanged(ctx, db, "a", 0) }},
		{"stage", 1, 1, func(ctx context.Context, db driver.SQL) error { return w.stage.Stage(ctx, db, "t", 1, 2, "x") }},
		{"publish", 1, 3, func(ctx context.Context, db driver.SQL) error { _, err := w.stage.Publish(ctx, db, "t"); return err }},
		{"drop", 1, 1, func(ctx context.Context, db driver.SQL) error { _, err := w.stage.Drop(ctx, db, "t"); return err }},
		{"decide", 1, 1, func(ctx context.Context, db driver.SQL) error {
			_, err := countermeasure.ByValue{}.Decide(ctx, db, "t", 1)
			return err
		}},
	} {
		var n databases.Counted
		ok(w, w.in(func(ctx context.Context, db driver.SQL) error { return c.call(ctx, n.SQL(db)) }))
		if want := on(w, c.postgres, c.maria); n.Statements.Load() != want {
			w.Errorf("%s: %d statements, want %d", c.name, n.Statements.Load(), want)
		}
	}
}

// ignored returns err, or nil if it is the expected error.
func ignored[E error](err error) error {
	if refused[E](err) != err {
		return nil
	}
	return err
}
