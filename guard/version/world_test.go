package version_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

// world is one database with the tables of this test, reached by one client.
type world struct {
	*testing.T
	*databases.DB
}

// TestSQL runs every test on each database with each client, in its own database.
func TestSQL(t *testing.T) {
	tests := []struct {
		name string
		test func(w world)
	}{
		{"an unseen entity leaves its stamp, a deleted one a tombstone", testUnseen},
		{"changes are judged as specified", testJudged},
		{"racing consumers converge on the newest", testRacingConsumers},
		{"who is later waits, and a rollback leaves nothing", testWaits},
		{"tombstones are purged after their time", testPurge},
		{"bad input ends in a clear error", testBadInput},
		{"a column guards its row", testColumn},
		{"each apply costs one statement, or two", testCosts},
		{"sixteen writers lose no update", testLostUpdate},
		{"conflicts end in an error or a hand-off", testConflicts},
		{"failures of serialization count as conflicts", testSerialization},
		{"an update that may be done is not repeated", testUncertainUpdate},
		{"rows are written as they are read", testRowKinds},
		{"an early snapshot applies nothing old", testEarlySnapshot},
		{"every way of sending parameters does", testQueryModes},
		{"an ended context ends it", testEndedContext},
		{"what comes back while it is purged stays", testPurgeBehind},
		{"however many are purged, a limit is one", testPurgeMany},
		{"a purge keeps to its limit by any plan", testPurgeLimit},
		{"keys beyond the numbers of a float are distinct", testLongNumbers},
		{"a row that goes while it is waited for is missing", testRowGone},
		{"of two that wait for each other one is undone", testCrossed},
		{"a connection lost inside of a transaction", testLostInside},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				w := world{t, open(t)}
				w.DB.Do(t, version.Table{}.Create)
				tt.test(w)
			})
		}
	})
}

// apply applies c in its own transaction, and runs then if the outcome is Applied.
func (w world) apply(g version.Guard, c version.Change, then ...string) (version.Outcome, error) {
	var o version.Outcome
	err := w.Try(w.Context(), func(ctx context.Context, db driver.SQL) (err error) {
		if o, err = g.Apply(ctx, db, c); err != nil || o != version.Applied {
			return err
		}
		for _, query := range then {
			if _, err := db.Exec(ctx, query); err != nil {
				return err
			}
		}
		return nil
	})
	return o, err
}

func (w world) mustApply(g version.Guard, c version.Change, want version.Outcome, then ...string) {
	w.Helper()
	if o, err := w.apply(g, c, then...); err != nil || o != want {
		w.Fatalf("apply %+v: %v, %v; want %v", c, o, err, want)
	}
}

func (w world) state(entity string) (s version.State) {
	w.Helper()
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
		s, err = version.Table{}.Show(ctx, db, entity)
		return err
	})
	return s
}

// text returns the single value of a query, as text.
func (w world) text(query string) string {
	w.Helper()
	return databases.One[string](w.T, w.DB, query)
}

// updater returns an Updater with short delays.
func updater(t testing.TB, o version.Options) *version.Updater {
	t.Helper()
	if o.First == 0 {
		o.First, o.Max = time.Millisecond, 20*time.Millisecond
	}
	u, err := version.NewUpdater(&o)
	ok(t, err)
	return u
}

func change(entity string, v int64, tie string) version.Change {
	return version.Change{Entity: entity, Stamp: version.Stamp{Version: v, Tie: tie}}
}

func terminal(c version.Change) version.Change { c.Terminal = true; return c }

// wins returns a terminal change that replaces newer states.
func wins(c version.Change) version.Change { c.Terminal, c.TerminalWins = true, true; return c }

func deleted(c version.Change) version.Change { c.Deleted = true; return c }

var ok, mustFail = testbed.OK, testbed.WantKind

func quoted(s string) string { return fmt.Sprintf("'%s'", s) }
