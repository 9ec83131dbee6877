package saga

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// effect is a target in the database: a row for each key, in its own transaction.
func effect(db driver.Beginner[driver.SQL], at *crash.Points) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		at.Pass()
		defer at.Pass()
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		key := From(ctx).Key() // of letters and slashes, here
		if _, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (name) select '%s' from one where not exists (select 1 from effect where name = '%s')`, key, key)); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

// engine serves all shards until the saga has ended.
func engine(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	j, err := journal.New(crash.Journal(journal.NewTable(db, ""), at), &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	apply := effect(db, at)
	undo := func(ctx context.Context, _ string, _ *string) error { return apply(ctx) }
	act := func(ctx context.Context, input string) (string, error) { return input, apply(ctx) }
	d := Define("order", Step("a", act).Undo("una", undo), Step("b", act).Undo("unb", undo),
		Step("c", func(ctx context.Context, _ string) (string, error) { at.Pass(); return "", Fail(errSeat) }).Undo("unc", undo),
		Step("p", act).Pivot())
	e, err := build(j, &settings{}, d)
	if err != nil {
		return err
	}
	defer txntest.Run(ctx, e.coordinator.Run)()
	if _, err := d.Do(ctx, e, "1", "in"); interlock.Kind(err) != interlock.Definite {
		return fmt.Errorf("the saga ended with %w", err)
	}
	return nil
}

// TestKilled: if a process is killed between any two of its writes, the next one undoes
// its saga, each effect once, in reverse order.
func TestKilled(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		crash.Share(t, "engine", crash.Part(t), 2, func(tb testing.TB) crash.Scene { return scene(tb, open(tb)) })
	}, databases.Pgx, databases.Maria)
}

// TestAsleep pauses a process anywhere until another one has completed the saga: when it
// wakes up, with an apparently valid claim, it appends nothing and has no effect.
func TestAsleep(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		crash.Asleep(t, "engine", "engine", 4, func(tb testing.TB) crash.Sleeper {
			db := open(tb)
			db.Exec(tb, crash.EndIdle)
			return crash.Sleeper{Scene: scene(tb, db), Left: func(tb testing.TB) string {
				tb.Helper()
				judgeKilled(tb, db)
				return strings.Join(txntest.Records(tb, journal.NewTable(db, ""), "1"), " ")
			}}
		})
	}, databases.Pgx)
}

// scene returns a database for one saga, and checks its final state.
func scene(tb testing.TB, db *databases.DB) crash.Scene {
	tb.Helper()
	db.Do(tb, journal.NewTable(db, "").Create)
	serial := "bigint auto_increment primary key"
	if db.Dialect == driver.Postgres {
		serial = "bigserial primary key"
	}
	db.Exec(tb, `create table effect (id `+serial+`, name varchar(100))`)
	db.Exec(tb, `create table one (id bigint)`)
	db.Exec(tb, `insert into one values (1)`)
	return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
		tb.Helper()
		judgeKilled(tb, db)
	}}
}

func judgeKilled(tb testing.TB, db *databases.DB) {
	tb.Helper()
	var effects []string
	db.Do(tb, func(ctx context.Context, tx driver.SQL) error {
		return tx.Query(ctx, `select name from effect order by id`, nil, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			if name != "1/c/undo" { // the step's outcome is unknown if its process was killed
				effects = append(effects, name)
			}
			return err
		})
	})
	if want := []string{"1/a/do", "1/b/do", "1/b/undo", "1/a/undo"}; !slices.Equal(effects, want) {
		tb.Errorf("effects %v", effects)
	}
	table := journal.NewTable(db, "")
	head, _, err := table.Read(tb.Context(), "1", 0)
	if err != nil || head.Ended.IsZero() {
		tb.Errorf("%+v, %v", head, err)
	}
	decided := strings.Count(strings.Join(txntest.Records(tb, table, "1"), " "), recordDecide+":")
	if unscheduled(tb, table); decided != 1 {
		tb.Errorf("%d decisions", decided)
	}
}

// crashing returns a step whose owner crashes before the answer, the given number of times.
func crashing(name string, times *int, gate chan struct{}) Action[string, string] {
	return Step(name, func(context.Context, string) (string, error) {
		if *times--; *times >= 0 {
			<-gate
			return "", errNetwork
		}
		return name, nil
	})
}

// TestCrashLoop: a step, at any place, that crashes every calling process finally makes its
// saga a dead letter, which an operator can continue.
func TestCrashLoop(t *testing.T) {
	undo := func(context.Context, string, *string) error { return nil }
	for name, define := range map[string]func(times *int, gate chan struct{}) (Definition[string], State){
		"before the pivot": func(times *int, gate chan struct{}) (Definition[string], State) {
			return Define("order", (&target{}).undoable("a"), crashing("b", times, gate).Undo("unb", undo)), Succeeded
		},
		"the pivot": func(times *int, gate chan struct{}) (Definition[string], State) {
			return Define("order", crashing("b", times, gate).Pivot()), Succeeded
		},
		"after the pivot": func(times *int, gate chan struct{}) (Definition[string], State) {
			return Define("order", (&target{}).act("a").Pivot(), crashing("b", times, gate)), Succeeded
		},
		"in a function": func(times *int, gate chan struct{}) (Definition[string], State) {
			b := crashing("b", times, gate).Undo("unb", undo)
			return DefineFunc("order", func(s *Run, in string) error { _, err := b.Do(s, in); return err }, b), Succeeded
		},
		"its undo": func(times *int, gate chan struct{}) (Definition[string], State) {
			b := Step("b", func(context.Context, string) (string, error) { return "", nil }).Undo("unb", func(ctx context.Context, in string, _ *string) error {
				_, err := crashing("b", times, gate).s.act(ctx, []byte(`""`))
				return err
			})
			return Define("order", b, (&target{}).undoable("c", always(Fail(errSeat))...)), Compensated
		},
	} {
		runBubble(t, name, func(t *testing.T) {
			gate, times := make(chan struct{}), 1000
			defer close(gate)
			d, end := define(&times, gate)
			var dead []observe.SagaDead
			o := &settings{saga: Options{Hooks: &observe.Saga{Dead: func(e observe.SagaDead) { dead = append(dead, e) }}}}
			r := serveBegun(t, o, d, "1", "in")
			for n := int64(2); n <= 20; n++ {
				synctest.Wait()
				r = serve(t, r.store, n, o, d)
			}
			synctest.Wait()
			looked, err := r.engine.Look(t.Context(), "1")
			ok(t, err)
			while := map[bool]string{true: "undone", false: "called"}[name == "its undo"]
			// Steps done before it count as done only once that is durable.
			if calls := 1000 - times; looked.State != DeadLetter || looked.Halted == "" || calls < 10 || calls > 13 || len(looked.Dead) != 1 || looked.Dead[0].Step != "b" ||
				!strings.Contains(looked.Reason, `taken over 10 times in a row while step "b" was `+while) {
				t.Fatalf("%d calls, %+v", 1000-times, looked)
			}
			if len(dead) != 1 || !slices.Equal(dead[0].Steps, []string{"b"}) || dead[0].Reason != looked.Reason {
				t.Errorf("reported %+v", dead)
			}
			_, err = r.engine.Wait(t.Context(), "1")
			if wantKind(t, err, interlock.Uncertain, ErrDeadLetter); !strings.Contains(err.Error(), "is halted: it was taken over") {
				t.Error(err)
			}
			moments, err := Replay(r.entries(t, "1"))
			if ok(t, err); moments[len(moments)-1].Steps[slices.IndexFunc(moments[len(moments)-1].Steps, func(p Progress) bool { return p.Step == "b" })].Attempts < 9 {
				t.Errorf("%+v", moments[len(moments)-1].Steps)
			}
			times = 0
			ok(t, NewOperator(r.coordinator.Journal()).Retry(t.Context(), "1", "", By{Actor: "ann", Reason: "the process has more memory now"}))
			r.coordinator.Nudge("1")
			looked, _ = r.engine.Wait(t.Context(), "1")
			if looked.State != end || looked.Halted != "" || looked.Reason != "" && end == Succeeded {
				t.Errorf("%+v", looked)
			}
			unscheduled(t, r.store.Journal)
		})
	}
}

// entries returns the records of a saga.
func (r *rig) entries(t *testing.T, id string) []journal.Entry {
	t.Helper()
	_, entries, err := r.coordinator.Journal().Open(context.Background(), id)
	ok(t, err)
	return entries
}

// TestNoCrashLoop: frequent changes of the owner do not halt sagas that wait, or whose calls
// get any answer.
func TestNoCrashLoop(t *testing.T) {
	undo := func(context.Context, string, *string) error { return nil }
	for name, step := range map[string]Stage[string]{
		"sleeps":             Sleep[string]("w", 1000*time.Hour),
		"waits":              (&target{}).undoable("a", always(InProgress(1000*time.Hour))...),
		"fails":              Step("a", func(context.Context, string) (string, error) { return "", errNetwork }).Pivot(),
		"fails once an hour": Step("a", func(context.Context, string) (string, error) { return "", errNetwork }).Pivot().Retry(Policy{First: time.Hour, Max: time.Hour}),
		"works on it": Step("a", func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}).Undo("una", undo).Timeout(1000 * time.Hour),
	} {
		runBubble(t, name, func(t *testing.T) {
			d := Define("order", step)
			o := &settings{Options: coordinator.Options{Poll: time.Minute}}
			r := serveBegun(t, o, d, "1", "in")
			for n := int64(2); n <= 40; n++ {
				synctest.Wait()
				time.Sleep(90 * time.Minute)
				r.quit()
				r = serve(t, r.store, n, o, d)
			}
			synctest.Wait()
			if o, err := r.engine.Look(t.Context(), "1"); err != nil || o.State != Running {
				t.Errorf("%+v, %v", o, err)
			}
			if n := len(r.records(t, "1")); n > 200 {
				t.Errorf("%d records", n)
			}
		})
	}
}

// TestYields: an owner that gives its shard away while a step is called, whose call then fails, does not
// count as crashed.
func TestYields(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var up atomic.Bool
		d := Define("order", Step("a", func(context.Context, string) (string, error) {
			if time.Sleep(15 * time.Second); up.Load() {
				return "", nil
			}
			return "", errNetwork
		}).Pivot())
		r := serveBegun(t, nil, d, "1", "in")
		r.quit()
		txntest.Yields(t, r.coordinator.Serve, func(id string) error {
			return txntest.Second(r.coordinator.Journal().Begin(t.Context(), id, "foreign:x", time.Now(), journal.Entry{Kind: "begin"}))
		})
		up.Store(true)
		r.serve(t, 17)
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "1")))
	})
}

// TestHaltedIsHelped: every command that is possible in a state of a saga is possible when
// the saga is halted there.
func TestHaltedIsHelped(t *testing.T) {
	m, err := replay([]journal.Entry{letters["begin"], letters["sent a"], letters["taken"], letters["halted"]})
	ok(t, err)
	for name, want := range map[string]State{"retry all": Running, "retry a": Running, "abort": Undoing, "resolved": Resolved, "remind": DeadLetter} {
		if after, err := m.with(letters[name]); err != nil || after.state != want {
			t.Errorf("%s: %v, %v", name, after.state, err)
		}
	}
	for _, name := range []string{"done a", "commit", "undone a", "end", "taken", "halted", "skip a"} {
		if after, err := m.with(letters[name]); err == nil {
			t.Errorf("%s: %v", name, after.state)
		}
	}
}

// TestFailuresAreKept: while a step fails, the journal has its last error and number of
// failures, without a record for each call; a new owner continues that count.
func TestFailuresAreKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var attempts txntest.Events[int]
		d := Define("order", Step("a", func(context.Context, string) (string, error) { return "", nil }).Uncompensable(), Step("p", func(ctx context.Context, _ string) (string, error) {
			attempts.Add(From(ctx).Attempt)
			return "", fmt.Errorf("call %d: %s", From(ctx).Attempt, strings.Repeat("no route\n", 100))
		}).Pivot(), (&target{}).act("z"))
		r := serveBegun(t, nil, d, "1", "in")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		moments, err := Replay(r.entries(t, "1"))
		ok(t, err)
		p := moments[len(moments)-1].Steps[1]
		if made := len(attempts.All()); p.Attempts < made/2 || p.Attempts > made || !strings.HasPrefix(p.Err, fmt.Sprintf("call %d: no route", p.Attempts)) || len(p.Err) > 510 || len(moments) > 12 {
			t.Errorf("%d calls, %d records: %+v", made, len(moments), p)
		}
		r.quit()
		serve(t, r.store, 2, nil, d)
		time.Sleep(time.Minute)
		if all := attempts.All(); all[len(all)-1] <= p.Attempts {
			t.Errorf("the new owner calls for the %dth time, after %d", all[len(all)-1], p.Attempts)
		}
	})
}

// TestOrderShown: a step that is recorded before its turn is not shown as sent.
func TestOrderShown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		undo := func(context.Context, string, *string) error { return nil }
		b := Step("b", func(context.Context, string) (string, error) { <-gate; return "", nil }).Undo("unb", undo)
		d := Define("order", (&target{}).undoable("a"), b, (&target{}).undoable("c"))
		r := serveBegun(t, nil, d, "1", "in")
		synctest.Wait()
		var kinds, statuses []string
		moments, err := Replay(r.entries(t, "1"))
		ok(t, err)
		for _, m := range moments {
			kinds = append(kinds, m.Kind+" "+m.Step)
		}
		for _, p := range moments[len(moments)-1].Steps {
			statuses = append(statuses, p.Status)
		}
		same(t, "kinds", kinds, "begin ", "sent a", "declared b", "declared c")
		same(t, "statuses", statuses, "sent", "declared", "declared") // the answer of a is not durable yet
		close(gate)
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "1")))
	})
}

// TestBegunElsewhere: the first owner of a saga is no takeover, and costs no additional
// record.
func TestBegunElsewhere(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.act("p").Pivot())
		r := idle(t, txntest.NewJournal(), nil, d)
		ok(t, d.Start(t.Context(), r.engine, "1", "in"))
		time.Sleep(time.Second)
		r.serve(t, 1)
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "1")))
		same(t, "records", r.records(t, "1"), "begin:", "sent:a", "done:a", "sent:p", "done:p", "decide:commit", "end:")
	})
}

// unlisted is a journal whose unfinished transactions cannot be listed until a channel is closed.
type unlisted struct {
	*memory.Journal
	until chan struct{}
}

func (j *unlisted) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	select {
	case <-j.until:
		return j.Journal.Due(ctx, shard, behind, limit)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestStartDuringTakeOver: a start that is repeated at the next owner, before that has found the saga, begins
// nothing: the former owner may have called the pivot, so its outcome is unknown until the target gives it.
func TestStartDuringTakeOver(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		gate := make(chan struct{})
		defer close(gate)
		var calls atomic.Int64
		d := Define("order", Step("pay", func(ctx context.Context, _ string) (string, error) {
			switch n := calls.Add(1); {
			case n == 1: // its process crashes after the effect
				ok(t, g.take(From(ctx).Key()))
				<-gate
				return "", errNetwork
			case n < 10:
				return "", Retry(errNetwork)
			}
			return "paid", g.take(From(ctx).Key())
		}).Pivot().Retry(Policy{Attempts: 2}))
		r := serveBegun(t, nil, d, "1", "in")
		synctest.Wait()
		store := &unlisted{r.store.Journal, make(chan struct{})}
		next, err := build(open(t, store, journal.Options{Shards: 1, Patience: time.Second}), &settings{}, d)
		ok(t, err)
		txntest.Serve(t, next.coordinator.Serve, 2)
		ok(t, d.Start(t.Context(), next, "1", "in"))
		synctest.Wait()
		close(store.until)
		o, err := next.Wait(t.Context(), "1")
		if ok(t, err); o.State != Succeeded {
			t.Errorf("%+v", o)
		}
		same(t, "effects", g.did(), "1/pay/do")
	})
}
