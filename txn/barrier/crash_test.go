package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// roles are participants that receive the same calls again at each start, as after lost
// answers.
var roles = map[string]crash.Role{
	"sale":         participant(owned, branch.Try, branch.Confirm),
	"undo":         participant(owned, branch.Try, branch.Cancel),
	"refusal":      participant(refusing(owned), branch.Try, branch.Try),
	"lent sale":    participant(lent, branch.Try, branch.Confirm),
	"lent refusal": participant(refusing(lent), branch.Try, branch.Try),
	"outside":      participant(target, branch.Try, branch.Confirm),
	"doubt":        participant(target, branch.Try, branch.Cancel),
	"forgetter":    forgetter,
}

// refusing returns a form whose tries have an effect and then refuse.
func refusing(f form) form {
	try := f.try
	f.try = func(ctx context.Context, w world, _ string) (Hold, error) { return try(ctx, w, "") }
	return f
}

// participant returns a role that answers calls of its branch. After a crash, a try that will
// be undone is not repeated, so that the undo finds the state of the crash.
func participant(f form, ops ...branch.Operation) crash.Role {
	return func(ctx context.Context, at *crash.Points, args []string) error {
		w, closed, err := connect(ctx, at, args)
		if err != nil {
			return err
		}
		defer closed()
		for _, op := range ops {
			if op == branch.Try && ops[1] == branch.Cancel && args[3] == "again" {
				continue
			}
			if err := f.reach(calling(ctx, args[2], op), w, op); err != nil {
				return err
			}
		}
		return nil
	}
}

// connect returns the world of a process that will be killed.
func connect(ctx context.Context, at *crash.Points, args []string) (world, func(), error) {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return world{}, nil, err
	}
	beyond := &databases.DB{BeginnerAt: db}
	return world{&databases.DB{BeginnerAt: crash.BeginnerAt(db, at)}, barrier.Table{Patience: patience}, beyond}, closed, nil
}

// reach repeats a call until it has an answer. A killed process counts as working outside until
// its time is over.
func (f form) reach(ctx context.Context, w world, op branch.Operation) (err error) {
	for {
		switch op {
		case branch.Try:
			_, err = f.try(ctx, w, "h1")
		case branch.Confirm:
			err = f.confirm(ctx, w)
		default:
			err = f.cancel(ctx, w)
		}
		class, after := branch.ClassOf(err)
		switch class {
		case branch.ClassFail:
			if errors.Is(err, barrier.ErrViolation) {
				return err
			}
			return nil
		case branch.ClassInProgress:
			time.Sleep(after) // the delay of the barrier
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) { // the machine was slow: a coordinator repeats the call
			continue
		}
		return err
	}
}

// target is an outside system, with one effect for each key.
var target = form{
	try: func(ctx context.Context, w world, id string) (Hold, error) {
		return barrier.DoOutside(ctx, w.DB, w.table, seat, func(ctx context.Context, key string) (Hold, error) {
			return Hold{id}, w.keyed(ctx, key, "hold")
		})
	},
	confirm: func(ctx context.Context, w world) error {
		return barrier.ConfirmOutside(ctx, w.DB, w.table, func(ctx context.Context, key string, done Hold) error {
			return w.keyed(ctx, key, "sell "+done.ID)
		})
	},
	cancel: func(ctx context.Context, w world) error {
		return barrier.UndoOutside(ctx, w.DB, w.table, func(ctx context.Context, key string, _ *Hold) error {
			return w.keyed(ctx, key, "free")
		})
	},
}

// keyed adds an effect unless its key has one.
func (w world) keyed(ctx context.Context, key, kind string) error {
	return w.beyond.Try(ctx, func(ctx context.Context, db driver.SQL) error {
		n, err := databases.Value[int64](ctx, db, fmt.Sprintf(`select count(*) from keyed where id = '%s'`, key))
		if err != nil || n > 0 {
			return err
		}
		if _, err := db.Exec(ctx, fmt.Sprintf(`insert into keyed (id) values ('%s')`, key)); err != nil {
			return err
		}
		return effect(ctx, db, branch.From(ctx).Branch, kind)
	})
}

// patience is the time for which a killed process counts as working outside.
const patience = 300 * time.Millisecond

var scenes atomic.Int64

// scene returns a scene with a separate branch for each run, which ends with allowed effects.
func (w world) scene(kind string, allowed ...map[string]int) func(testing.TB) crash.Scene {
	return func(tb testing.TB) crash.Scene {
		name := fmt.Sprintf("%s%d", kind, scenes.Add(1))
		return crash.Scene{Args: []string{w.Client, w.URL, name, "first"}, Want: func(tb testing.TB) {
			tb.Helper()
			got := w.effects(tb, name)
			if !slices.ContainsFunc(allowed, func(m map[string]int) bool { return maps.Equal(m, got) }) {
				tb.Errorf("%s: effects %v, want one of %v", name, got, allowed)
			}
			w.settled(tb, kind, name)
		}}
	}
}

// settled makes a late try, which must change nothing.
func (w world) settled(tb testing.TB, kind, name string) {
	tb.Helper()
	_, err := owned.try(calling(context.WithoutCancel(tb.Context()), name, branch.Try), w, "late")
	word := wordOf(err, "done")
	want := map[string]string{"sale": "done", "lent_sale": "done", "outside": "done",
		"undo": "cancelled", "doubt": "cancelled", "refusal": "refused", "lent_refusal": "refused"}[kind]
	if word != want {
		tb.Errorf("%s: a late try is answered %q, want %q", name, word, want)
	}
}

// testCrash kills a participant between any two of its statements, and sends the same calls
// again: each effect exists once, refusals leave none, and begun branches are undone on request.
func testCrash(t *testing.T, w world) {
	w.Exec(t, `create table keyed (id varchar(250) primary key)`)
	sold := map[string]int{"hold": 1, "sell h1": 1}
	for _, c := range []struct {
		role, kind string
		allowed    map[string]int
	}{
		{"sale", "sale", sold},
		{"refusal", "refusal", map[string]int{}},
		{"lent sale", "lent_sale", sold},
		{"lent refusal", "lent_refusal", map[string]int{}},
		{"outside", "outside", sold},
	} {
		t.Run(c.role, func(t *testing.T) {
			t.Parallel()
			w.killed(t, c.role, w.scene(c.kind, c.allowed), nil)
		})
	}
	t.Run("undo", func(t *testing.T) { t.Parallel(); w.undone(t, "undo", true) })
	t.Run("doubt", func(t *testing.T) { t.Parallel(); w.undone(t, "doubt", false) })
}

// step is the distance of the points at which a role is killed on one database.
var step = map[bool]int{true: 1, false: 2}[os.Getenv("INTERLOCK_CRASHES") == "full"]

// killed kills a role at its points, and starts it again, or as play does. PostgreSQL has the odd
// points and MariaDB the even ones, unless all are requested: on both, a kill between two statements
// leaves the committed state.
func (w world) killed(t *testing.T, role string, scene func(testing.TB) crash.Scene, play func(t *testing.T, point, all int)) {
	if play == nil {
		play = func(t *testing.T, point, _ int) {
			s := scene(t)
			dies(t, role, point, s)
			crash.Run(t, role, 0, s.Args...)
			s.Want(t)
		}
	}
	s := scene(t)
	all, _ := crash.Run(t, role, 0, s.Args...)
	s.Want(t)
	if all < leastPoints {
		t.Fatalf("only %d points", all)
	}
	first := 1
	if w.Dialect == driver.MariaDB {
		first = step
	}
	for point := first; point <= all; point += step {
		t.Run(fmt.Sprintf("killed at %d of %d", point, all), func(t *testing.T) {
			t.Parallel()
			play(t, point, all)
		})
	}
}

// leastPoints is the number of points that every run passes.
const leastPoints = 6

// dies runs a role that is killed. If a slow machine repeated calls in the run that counted the
// points, this run has fewer, and the role is not killed.
func dies(t *testing.T, role string, point int, s crash.Scene) {
	t.Helper()
	if _, dead := crash.Run(t, role, point, s.Args...); !dead && point <= leastPoints {
		t.Fatalf("it passed fewer than %d points", point)
	}
}

// undone kills a participant that tries and cancels, and if twice is set again at points of the
// following cancel.
func (w world) undone(t *testing.T, role string, twice bool) {
	allowed := []map[string]int{{}, {"hold": 1, "free h1": 1}}
	if role == "doubt" {
		// The target may receive a free without a hold.
		allowed = []map[string]int{{}, {"free": 1}, {"hold": 1, "free": 1}}
	}
	scene := w.scene(role, allowed...)
	w.killed(t, role, scene, func(t *testing.T, first, all int) {
		again := func(second int) (killed bool) {
			s := scene(t)
			dies(t, role, first, s)
			s.Args[3] = "again"
			if _, killed = crash.Run(t, role, second, s.Args...); killed {
				crash.Run(t, role, 0, s.Args...)
			}
			s.Want(t)
			return killed
		}
		again(0)
		if !twice || first > 2 && first < all/2 { // all kills before the try's COMMIT leave the same: nothing
			return
		}
		for second := 1 + first/2%step; again(second); second += step {
		}
	})
}

// forgetter forgets branches that began before the first step.
func forgetter(ctx context.Context, at *crash.Points, args []string) error {
	w, closed, err := connect(ctx, at, args)
	if err != nil {
		return err
	}
	defer closed()
	_, err = barrier.Forget(ctx, w.DB, w.table, after(1), 0)
	return err
}

// testForgetCrash kills a process that forgets: the mark is in force before a row is deleted.
func testForgetCrash(t *testing.T, w world) {
	w.killed(t, "forgetter", func(tb testing.TB) crash.Scene {
		w := newWorld(tb, databases.Open(tb, w.Server, w.Client))
		_, err := owned.try(calling(tb.Context(), "old", branch.Try), w, "h1")
		ok(tb, err)
		return crash.Scene{Args: []string{w.Client, w.URL, "old", "first"}, Want: func(tb testing.TB) {
			tb.Helper()
			_, err := owned.try(calling(context.WithoutCancel(tb.Context()), "old", branch.Try), w, "h2")
			if n := w.rows(tb); n != 0 || !errors.Is(err, barrier.ErrForgotten) {
				tb.Errorf("%d rows, %v", n, err)
			}
			if got := w.effects(tb, "old"); got["hold"] != 1 {
				tb.Errorf("effects %v", got)
			}
		}}
	}, nil)
}
