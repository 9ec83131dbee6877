package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testSpoiled simulates callers that ignore the failure of the effect.
func testSpoiled(t *testing.T, w world) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("half way") },
		"panic": func() error { panic("half way") },
	} {
		for form, receive := range map[string]func(ctx context.Context, tx driver.SQL, m once.Message, fn func(context.Context) error){
			"once": func(ctx context.Context, tx driver.SQL, m once.Message, fn func(context.Context) error) {
				_, _ = w.inbox.Once(ctx, tx, m, fn)
			},
			"batch": func(ctx context.Context, tx driver.SQL, m once.Message, fn func(context.Context) error) {
				_, _ = w.inbox.Batch(ctx, tx, []once.Message{m}, func(ctx context.Context, _ []once.Message) error { return fn(ctx) })
			},
			"sequence": func(ctx context.Context, tx driver.SQL, m once.Message, fn func(context.Context) error) {
				m.Key, m.Seq = m.ID, 1
				_, _ = w.inbox.Once(ctx, tx, m, fn)
			},
		} {
			m := once.Message{ID: name + " of " + form}
			tx := w.Begun(t, driver.SessionIsolation)
			func() {
				defer func() { _ = recover() }()
				receive(t.Context(), tx, m, func(ctx context.Context) error {
					ok(t, effect(m.ID)(ctx, tx))
					return fail()
				})
			}()
			_, _ = tx.Exec(t.Context(), `insert into effect (message) values ('after')`)
			if err := tx.Commit(t.Context()); err == nil {
				t.Errorf("%s: the transaction was committed", m.ID)
			}
			w.wantEffects(t, m.ID, 0)
			w.wantEffects(t, "after", 0)
			outcome, err := w.deliver(t.Context(), m)
			want(t, outcome, err, once.Done)
		}
	}
}

// TestSpoiledByHand: nor can it be committed by the client's own handle.
func TestSpoiledByHand(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		library, lend := "pgx", postgres.StdTx
		if w.Dialect == driver.MariaDB {
			library, lend = "mysql", mysql.Tx
		}
		db, err := sql.Open(library, w.URL)
		ok(t, err)
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), nil)
		ok(t, err)
		_, err = w.inbox.Once(t.Context(), lend(tx), message(1), func(ctx context.Context) error {
			ok(t, effect("m1")(ctx, lend(tx)))
			return errors.New("half way")
		})
		if err == nil || err.Error() != "half way" {
			t.Error(err)
		}
		_ = tx.Commit()
		w.wantEffects(t, "m1", 0)
		outcome, err := w.deliver(t.Context(), message(1))
		want(t, outcome, err, once.Done)
	}, databases.PgxStd, databases.Maria)
}

// TestEndedByHand: an effect that ends the transaction leaves its outcome unknown.
func TestEndedByHand(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		library, begins := "pgx", postgres.DB
		if w.Dialect == driver.MariaDB {
			library, begins = "mysql", mysql.DB
		}
		db, err := sql.Open(library, w.URL)
		ok(t, err)
		defer db.Close()
		for i, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			m := message(i)
			outcome, err := once.Tx(t.Context(), begins(db), w.inbox, m, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `insert into effect (message) values ('`+m.ID+`')`)
				ok(t, err)
				return end(tx)
			})
			if wantKind(t, err, interlock.Uncertain, sql.ErrTxDone); outcome != once.Undone {
				t.Errorf("%v", outcome)
			}
			outcome, err = w.deliver(t.Context(), m)
			want(t, outcome, err, []once.Outcome{once.Duplicate, once.Done}[i])
			w.wantEffects(t, m.ID, 1)
		}
	}, databases.PgxStd, databases.Maria)
}

func testFailedEffect(t *testing.T, w world) {
	for _, optimistic := range []bool{false, true} {
		w.inbox.Optimistic = optimistic
		m := message(1)
		if optimistic {
			m = message(2)
		}
		own := errors.New("no money")
		outcome, err := once.Tx(t.Context(), w.DB, w.inbox, m, func(ctx context.Context, tx driver.SQL) error {
			ok(t, effect(m.ID)(ctx, tx))
			return own
		})
		if outcome != once.Undone || err != own {
			t.Errorf("%v, %v", outcome, err)
		}
		func() {
			defer func() {
				if recover() != "oops" {
					t.Error("the panic did not come through")
				}
			}()
			_, _ = once.Tx(t.Context(), w.DB, w.inbox, m, func(context.Context, driver.SQL) error { panic("oops") })
		}()
		gaveUp := errors.New("gave up")
		ctx, cancel := context.WithCancelCause(t.Context())
		outcome, err = once.Tx(ctx, w.DB, w.inbox, m, func(ctx context.Context, tx driver.SQL) error {
			ok(t, effect(m.ID)(ctx, tx))
			cancel(gaveUp)
			return nil
		})
		if !errors.Is(err, gaveUp) || interlock.Kind(err) == interlock.Uncertain || outcome != once.Undone { // COMMIT was not sent
			t.Errorf("%v, %v", outcome, err)
		}
		w.wantEffects(t, m.ID, 0)
		outcome, err = w.deliver(t.Context(), m)
		want(t, outcome, err, once.Done)
		w.wantEffects(t, m.ID, 1)
	}
}

// ownError has a cause with an unknown outcome, in another system than the database.
type ownError struct{ cause error }

func (e *ownError) Error() string { return "charge the card: " + e.cause.Error() }
func (e *ownError) Unwrap() error { return e.cause }

func testOwnError(t *testing.T, w world) {
	own := &ownError{&interlock.Error{Op: "charge", Kind: interlock.Uncertain, Err: errors.New("no answer")}}
	outcome, err := once.Tx(t.Context(), w.DB, w.inbox, message(1), func(context.Context, driver.SQL) error { return own })
	if err != own || outcome != once.Undone {
		t.Errorf("%v, %v", outcome, err)
	}
	_, err = once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 2), func(context.Context, driver.SQL, []once.Message) error { return own })
	if err != own {
		t.Error(err)
	}
}

// roles are consumers that receive all their messages again at each start: nothing was
// acknowledged.
var roles = map[string]crash.Role{
	"once": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		return second(once.Tx(ctx, db, in, message(0), twoEffects(in, message(0))))
	}),
	"optimist": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		in.Optimistic = true
		return second(once.Tx(ctx, db, in, message(0), twoEffects(in, message(0))))
	}),
	"lent": consumer(lent),
	"batch": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		for _, batch := range [][]once.Message{messages(0, 2), messages(1, 3)} {
			if _, err := once.BatchTx(ctx, db, in, batch, ownEffects(in)); err != nil {
				return err
			}
		}
		return nil
	}),
	"sequence": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		for n := range 2 {
			m := message(n)
			m.Key, m.Seq = "k", int64(n+1)
			if _, err := once.Tx(ctx, db, in, m, ownEffect(in, m)); err != nil {
				return err
			}
		}
		return nil
	}),
	// The shortest of each form, to be killed twice.
	"one message": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		return second(once.Tx(ctx, db, in, message(0), ownEffect(in, message(0))))
	}),
	"one batch": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		return second(once.BatchTx(ctx, db, in, messages(0, 2), ownEffects(in)))
	}),
	"one number": consumer(func(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
		m := message(0)
		m.Key, m.Seq = "k", 1
		return second(once.Tx(ctx, db, in, m, ownEffect(in, m)))
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
		return receive(ctx, crash.Beginner[driver.SQL](db, at), inboxOf(args[2]))
	}
}

// inboxOf returns one of several inboxes in a database, each with its own tables: on
// MariaDB, gap locks of shared tables can collide, and one transaction must retry.
func inboxOf(name string) once.Inbox {
	return once.Inbox{Name: name, Consumer: "billing", Rotated: strings.HasPrefix(name, "rotated")}
}

// ownEffect returns an effect that differs between inboxes.
func ownEffect(in once.Inbox, m once.Message) func(context.Context, driver.SQL) error {
	return effect(in.Name + " " + m.ID)
}

func ownEffects(in once.Inbox) func(context.Context, driver.SQL, []once.Message) error {
	return func(ctx context.Context, tx driver.SQL, fresh []once.Message) error {
		for i := range fresh {
			fresh[i].ID = in.Name + " " + fresh[i].ID
		}
		return effectsOf(ctx, tx, fresh)
	}
}

// twoEffects makes half of an effect possible: a row, and the output that follows.
func twoEffects(in once.Inbox, m once.Message) func(context.Context, driver.SQL) error {
	return func(ctx context.Context, tx driver.SQL) error {
		if err := ownEffect(in, m)(ctx, tx); err != nil {
			return err
		}
		return outbox.Table{}.Add(ctx, tx, driver.Message{ID: in.Name + " " + m.ID, Topic: in.Name})
	}
}

// lent begins and ends the transaction by itself.
func lent(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = in.Once(ctx, tx.Native(), message(0), func(ctx context.Context) error { return ownEffect(in, message(0))(ctx, tx.Native()) })
	if err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

// rotateAndDeliver changes the generation between two deliveries of a message.
func rotateAndDeliver(ctx context.Context, db driver.Beginner[driver.SQL], in once.Inbox) error {
	if _, err := once.Tx(ctx, db, in, message(0), ownEffect(in, message(0))); err != nil {
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
	return second(once.Tx(ctx, db, in, message(0), ownEffect(in, message(0))))
}

// scenes gives each run of a role its own inbox in one world; each effect must happen
// once.
func (w world) scenes(kind string, effects, outputs int64) func(testing.TB) crash.Scene {
	var inboxes atomic.Int64
	return func(tb testing.TB) crash.Scene {
		in := inboxOf(fmt.Sprintf("%s_%d", strings.ReplaceAll(kind, " ", "_"), inboxes.Add(1)))
		w.Do(tb, in.Create)
		if in.Rotated {
			w.Exec(tb, `update `+in.Name+`_generation set since = since - interval '8 days'`)
		}
		return crash.Scene{Args: []string{w.Client, w.URL, in.Name}, Want: func(tb testing.TB) {
			tb.Helper()
			for what, c := range map[string]struct {
				query string
				want  int64
			}{
				"effects":           {`select count(*) from effect where message like '%s m%%'`, effects},
				"different effects": {`select count(distinct message) from effect where message like '%s m%%'`, effects},
				"outputs":           {`select count(*) from interlock_outbox where topic = '%s'`, outputs},
			} {
				if got := databases.One[int64](tb, w.DB, fmt.Sprintf(c.query, in.Name)); got != c.want {
					tb.Errorf("%d %s of %s, want %d", got, what, in.Name, c.want)
				}
			}
		}}
	}
}

// TestCrash kills a consumer between any two of its statements and restarts it: once,
// with the places divided among the databases, and twice, at some pairs of places or at
// all of them (make soak-crashes).
func TestCrash(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		w.Do(t, outbox.Table{}.Create)
		for _, c := range []struct {
			role             string
			effects, outputs int64
		}{{"once", 1, 1}, {"optimist", 1, 1}, {"lent", 1, 0}, {"batch", 3, 0}, {"sequence", 2, 0}} {
			t.Run(c.role, func(t *testing.T) {
				t.Parallel()
				part := 0
				if !onPostgres(t) {
					part = 1
				}
				crash.Share(t, c.role, part, 2, w.scenes(c.role, c.effects, c.outputs))
			})
		}
		// The forms differ in their records, not in the commit.
		twice := map[string]int64{"one message": 1, "one batch": 2}
		if onPostgres(t) {
			twice = map[string]int64{"one message": 1, "one number": 1}
		}
		for role, effects := range twice {
			t.Run(role+" twice", func(t *testing.T) {
				t.Parallel()
				crash.Pairs(t, role, 6, w.scenes(role, effects, 0))
			})
		}
		if onPostgres(t) {
			for role, effects := range map[string]int64{"batch": 3, "rotate": 1} {
				t.Run(role+" of generations", func(t *testing.T) {
					t.Parallel()
					crash.Once(t, role, w.scenes("rotated_"+role, effects, 0))
				})
			}
		}
	}, databases.Pgx, databases.Maria)
}
