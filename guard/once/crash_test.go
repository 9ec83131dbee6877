package once_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// roles are consumers, which are given all their messages again whenever they
// start: nothing was acknowledged.
var roles = map[string]crash.Role{
	"once": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		return second(once.Tx(ctx, db, in, message(0), twoEffects(message(0).ID)))
	}),
	"optimist": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		in.Optimistic = true
		return second(once.Tx(ctx, db, in, message(0), twoEffects(message(0).ID)))
	}),
	"lent": consumer(lent),
	"batch": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		for _, batch := range [][]once.Message{messages(0, 2), messages(1, 3)} {
			if _, err := once.BatchTx(ctx, db, in, batch, effectsOf); err != nil {
				return err
			}
		}
		return nil
	}),
	"sequence": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		for n := range 2 {
			m := message(n)
			m.Key, m.Seq = "k", int64(n+1)
			if _, err := once.Tx(ctx, db, in, m, effect(m.ID)); err != nil {
				return err
			}
		}
		return nil
	}),
	// The shortest of each form, to be killed twice.
	"one message": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		return second(once.Tx(ctx, db, in, message(0), effect("m0")))
	}),
	"one batch": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		return second(once.BatchTx(ctx, db, in, messages(0, 2), effectsOf))
	}),
	"one number": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		m := message(0)
		m.Key, m.Seq = "k", 1
		return second(once.Tx(ctx, db, in, m, effect("m0")))
	}),
	"rotate":     consumer(rotateAndDeliver),
	"rememberer": rememberer,
}

func consumer(receive func(context.Context, driver.Beginner[driver.SQL], once.Inbox) error) crash.Role {
	return func(ctx context.Context, at *crash.Points, args []string) error {
		db, closed, err := databases.Connect(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		defer closed()
		return receive(ctx, crash.Beginner[driver.SQL](db, at), once.Inbox{Consumer: "billing", Rotated: args[2] == "rotated"})
	}
}

// twoEffects makes half of an effect possible: a row, and the output that follows.
func twoEffects(message string) func(context.Context, driver.SQL) error {
	return func(ctx context.Context, tx driver.SQL) error {
		if err := effect(message)(ctx, tx); err != nil {
			return err
		}
		return effect("output of "+message)(ctx, tx)
	}
}

// lent begins and ends the transaction by itself.
func lent(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = in.Once(ctx, tx.Native(), message(0), func(ctx context.Context) error { return effect("m0")(ctx, tx.Native()) })
	if err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

// rotateAndDeliver changes the generation between two deliveries of a message.
func rotateAndDeliver(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
	if _, err := once.Tx(ctx, db, in, message(0), effect("m0")); err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := in.Rotate(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return second(once.Tx(ctx, db, in, message(0), effect("m0")))
}

// scene is a world for a consumer; each of the effects is to be there once.
func scene(open func(testing.TB) *databases.DB, rotated bool, effects ...string) func(testing.TB) crash.Scene {
	return func(tb testing.TB) crash.Scene {
		w := newWorld(tb, open(tb), once.Inbox{Consumer: "billing", Rotated: rotated})
		args := []string{w.Client, w.URL, "rows"}
		if rotated {
			args[2] = "rotated"
			w.Exec(tb, `update interlock_inbox_generation set since = since - interval '8 days'`)
		}
		return crash.Scene{Args: args, Want: func(tb testing.TB) {
			tb.Helper()
			for _, e := range effects {
				w.wantEffects(tb, e, 1)
			}
			if got := databases.One[int64](tb, w.DB, `select count(*) from effect`); got != int64(len(effects)) {
				tb.Errorf("%d effects, want %d", got, len(effects))
			}
		}}
	}
}

// TestCrash kills a consumer between any two of its statements, once and twice, and
// lets it start again.
func TestCrash(t *testing.T) {
	effects := map[string][]string{
		"once": {"m0", "output of m0"}, "optimist": {"m0", "output of m0"}, "lent": {"m0"},
		"batch": {"m0", "m1", "m2"}, "sequence": {"m0", "m1"},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for role, effects := range effects {
			t.Run(role, func(t *testing.T) {
				t.Parallel()
				crash.Once(t, role, scene(open, false, effects...))
			})
		}
		for role, effects := range map[string][]string{"one message": {"m0"}, "one batch": {"m0", "m1"}, "one number": {"m0"}} {
			t.Run(role+" twice", func(t *testing.T) {
				t.Parallel()
				crash.Twice(t, role, scene(open, false, effects...))
			})
		}
		if onPostgres(t) {
			for role, effects := range map[string][]string{"batch": effects["batch"], "rotate": {"m0"}} {
				t.Run(fmt.Sprint(role, " of generations"), func(t *testing.T) {
					t.Parallel()
					crash.Once(t, role, scene(open, true, effects...))
				})
			}
		}
	}, databases.Pgx, databases.Maria)
}
