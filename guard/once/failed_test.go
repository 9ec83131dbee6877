package once_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/once"
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
