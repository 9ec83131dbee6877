package once_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

// world is a database of one test, with an inbox and a table of effects.
type world struct {
	*databases.DB
	inbox once.Inbox
}

// worlds runs test with each client, and with rotated tables by one client that supports them.
func worlds(t *testing.T, test func(t *testing.T, open func(testing.TB) world), clients ...string) {
	t.Helper()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		opener := func(rotated bool) func(testing.TB) world {
			return func(tb testing.TB) world {
				tb.Helper()
				return newWorld(tb, open(tb), once.Inbox{Consumer: "billing", Rotated: rotated})
			}
		}
		t.Run("rows", func(t *testing.T) { test(t, opener(false)) })
		if strings.HasSuffix(t.Name(), strings.ReplaceAll(databases.Pgx, " ", "_")) {
			t.Run("generations", func(t *testing.T) { test(t, opener(true)) })
		}
	}, clients...)
}

// onPostgres reports whether a test runs on PostgreSQL, by its name.
func onPostgres(t *testing.T) bool {
	return slices.Contains(strings.Split(t.Name(), "/"), string(driver.Postgres))
}

func newWorld(tb testing.TB, db *databases.DB, inbox once.Inbox) world {
	tb.Helper()
	w := world{db, inbox}
	db.Do(tb, inbox.Create)
	db.Exec(tb, `create table effect (message varchar(300) not null)`)
	return w
}

// effect returns a function that adds a row for a message.
func effect(message string) func(context.Context, driver.SQL) error {
	return func(ctx context.Context, tx driver.SQL) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (message) values ('%s')`, message))
		return err
	}
}

// effects returns the number of effects of a message.
func (w world) effects(tb testing.TB, message string) int64 {
	tb.Helper()
	return databases.One[int64](tb, w.DB, fmt.Sprintf(`select count(*) from effect where message = '%s'`, message))
}

func (w world) wantEffects(tb testing.TB, message string, want int64) {
	tb.Helper()
	if got := w.effects(tb, message); got != want {
		tb.Errorf("%d effects of %s, want %d", got, message, want)
	}
}

// deliver delivers a message once; its effect is a row of its ID.
func (w world) deliver(ctx context.Context, m once.Message) (once.Outcome, error) {
	return once.Tx(ctx, w.DB, w.inbox, m, effect(m.ID))
}

func message(n int) once.Message {
	id := fmt.Sprintf("m%d", n)
	return once.Message{ID: id, Payload: []byte("payload of " + id)}
}

func want(tb testing.TB, outcome once.Outcome, err error, wanted once.Outcome) {
	tb.Helper()
	if err != nil || outcome != wanted {
		tb.Errorf("%v, %v, want %v", outcome, err, wanted)
	}
}

var ok, wantKind = testbed.OK, testbed.WantKind

// answer is the outcome of a delivery.
type answer struct {
	outcome once.Outcome
	err     error
}

// later runs fn, and returns its answer within bound.
func later(tb testing.TB, fn func() (once.Outcome, error)) (wait func() answer) {
	var a answer
	done := testbed.Later(tb, bound, func() error { a.outcome, a.err = fn(); return nil })
	return func() answer { _ = done(); return a }
}

func (w world) wantWaiting(tb testing.TB, n int64) {
	tb.Helper()
	testbed.Eventually(tb, fmt.Sprintf("%d sessions wait", n), bound, func() bool { return w.Waiting(tb) == n })
}
