package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound bounds the wait of a test for a condition.
const bound = 20 * time.Second

// begun is the time when the transactions of tests began.
var begun = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a database of one test, with a barrier and a table of effects.
type world struct {
	*databases.DB
	table  barrier.Table
	beyond *databases.DB // has the outside effects, which have no crash points
}

func newWorld(tb testing.TB, db *databases.DB) world {
	tb.Helper()
	var table barrier.Table
	db.Do(tb, table.Create)
	db.Exec(tb, `create table effect (branch varchar(250) not null, kind varchar(20) not null)`)
	return world{db, table, db}
}

// call returns a call of a branch.
func call(name string, op branch.Operation) branch.Call {
	return branch.Call{Transaction: "tx", Branch: name, Operation: op, Attempt: 1, Begun: begun}
}

func calling(ctx context.Context, name string, op branch.Operation) context.Context {
	return branch.With(ctx, call(name, op))
}

// Seat is an input, Hold an output.
type (
	Seat struct{ Row int }
	Hold struct{ ID string }
)

var seat = Seat{12}

var errNoSeat = errors.New("no seat left in row 12")

// effect adds a row for an effect on a branch; kind is any text of the test.
func effect(ctx context.Context, tx driver.SQL, name, kind string) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (branch, kind) values ('%s', '%s')`, name, kind))
	return err
}

// form is one way to pass the barrier. Its try takes a hold of an id, or if the id is empty refuses
// after an effect.
type form struct {
	name    string
	try     func(ctx context.Context, w world, id string) (Hold, error)
	confirm func(ctx context.Context, w world) error
	cancel  func(ctx context.Context, w world) error
}

func hold(ctx context.Context, tx driver.SQL, id string) (Hold, error) {
	if err := effect(ctx, tx, branch.From(ctx).Branch, "hold"); err != nil {
		return Hold{}, err
	}
	if id == "" {
		return Hold{}, branch.Fail(errNoSeat)
	}
	return Hold{id}, nil
}

func sell(ctx context.Context, tx driver.SQL, done Hold) error {
	return effect(ctx, tx, branch.From(ctx).Branch, "sell "+done.ID)
}

func free(ctx context.Context, tx driver.SQL, done *Hold) error {
	kind := "free unknown"
	if done != nil {
		kind = "free " + done.ID
	}
	return effect(ctx, tx, branch.From(ctx).Branch, kind)
}

// owned passes in transactions of the barrier.
var owned = form{
	name: "owned",
	try: func(ctx context.Context, w world, id string) (Hold, error) {
		return barrier.Do(ctx, w.DB, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) { return hold(ctx, tx, id) })
	},
	confirm: func(ctx context.Context, w world) error { return barrier.Confirm(ctx, w.DB, w.table, sell) },
	cancel:  func(ctx context.Context, w world) error { return barrier.Undo(ctx, w.DB, w.table, free) },
}

// lent passes in transactions of the user.
var lent = form{
	name: "lent",
	try: func(ctx context.Context, w world, id string) (Hold, error) {
		var a barrier.Answer[Hold]
		err := w.Try(ctx, func(ctx context.Context, db driver.SQL) (err error) {
			a, err = barrier.DoIn(ctx, db, w.table, seat, func(ctx context.Context) (Hold, error) { return hold(ctx, db, id) })
			return err
		})
		return a.Output, errors.Join(err, a.Refused)
	},
	confirm: func(ctx context.Context, w world) error {
		return w.Try(ctx, func(ctx context.Context, db driver.SQL) error {
			return barrier.ConfirmIn(ctx, db, w.table, func(ctx context.Context, done Hold) error { return sell(ctx, db, done) })
		})
	},
	cancel: func(ctx context.Context, w world) error {
		return w.Try(ctx, func(ctx context.Context, db driver.SQL) error {
			return barrier.UndoIn(ctx, db, w.table, func(ctx context.Context, done *Hold) error { return free(ctx, db, done) })
		})
	},
}

// outside passes with effects that are committed apart from the barrier.
var outside = form{
	name: "outside",
	try: func(ctx context.Context, w world, id string) (Hold, error) {
		return barrier.DoOutside(ctx, w.DB, w.table, seat, func(ctx context.Context, _ string) (h Hold, err error) {
			err = w.Try(ctx, func(ctx context.Context, db driver.SQL) error {
				h, err = hold(ctx, db, id)
				return err
			})
			return h, err
		})
	},
	confirm: func(ctx context.Context, w world) error {
		return barrier.ConfirmOutside(ctx, w.DB, w.table, func(ctx context.Context, _ string, done Hold) error {
			return w.Try(ctx, func(ctx context.Context, db driver.SQL) error { return sell(ctx, db, done) })
		})
	},
	cancel: func(ctx context.Context, w world) error {
		return barrier.UndoOutside(ctx, w.DB, w.table, func(ctx context.Context, _ string, done *Hold) error {
			return w.Try(ctx, func(ctx context.Context, db driver.SQL) error { return free(ctx, db, done) })
		})
	},
}

// effects counts the effects on a branch, by kind.
func (w world) effects(tb testing.TB, name string) map[string]int {
	tb.Helper()
	all := map[string]int{}
	w.Do(tb, func(ctx context.Context, db driver.SQL) error {
		return db.Query(ctx, fmt.Sprintf(`select kind from effect where branch = '%s'`, name), nil, func(scan func(...any) error) error {
			var kind string
			err := scan(&kind)
			all[kind]++
			return err
		})
	})
	return all
}

// rows returns the number of the barrier's rows.
func (w world) rows(tb testing.TB) int64 {
	tb.Helper()
	return databases.One[int64](tb, w.DB, `select count(*) from interlock_barrier`)
}

func wantKind(tb testing.TB, err error, kind interlock.ErrorKind, class branch.Class, target error) {
	tb.Helper()
	got, _ := branch.ClassOf(err)
	if err == nil || interlock.Kind(err) != kind || got != class || target != nil && !errors.Is(err, target) {
		tb.Errorf("%v (%v, %v), want %v, %v, %v", err, interlock.Kind(err), got, kind, class, target)
	}
}

var ok = testbed.OK

// dbTest is a test that needs a separate database.
type dbTest struct {
	name string
	test func(*testing.T, world)
}

// TestDatabases runs each test in a separate database: by every client, or by one of each system if
// clients do not differ.
func TestDatabases(t *testing.T) {
	inDatabases(t, []dbTest{
		{"Permutations", testPermutations},
		{"Races", testRaces},
		{"Costs", testCosts},
		{"CostsLent", testCostsLent},
		{"Spoiled", testSpoiled},
		{"UnknownOutcome", testUnknownOutcome},
	}, databases.All...)
	inDatabases(t, []dbTest{
		{"Forget", testForget},
		{"LateCallOfALaterBegin", testLateCallOfALaterBegin},
		{"RefusalInLent", testRefusalInLent},
		{"OuterRefusal", testOuterRefusal},
		{"Participant", testParticipant},
		{"EndedInside", testEndedInside},
		{"BadInput", testBadInput},
		{"Closed", testClosed},
		{"Unstored", testUnstored},
		{"MixedForms", testMixedForms},
		{"Stopped", testStopped},
	}, databases.PgxStd, databases.MariaInlined)
	inDatabases(t, []dbTest{
		{"Crash", testCrash},
		{"ForgetCrash", testForgetCrash},
		{"Deadlocks", testDeadlocks},
		{"BegunMayDiffer", testBegunMayDiffer},
		{"ForgetWaits", testForgetWaits},
		{"ForgetSnapshots", testForgetSnapshots},
		{"ConfirmWhileTheMarkMoves", testConfirmWhileTheMarkMoves},
		{"ForgetExcept", testForgetExcept},
		{"ForgetExceptWaits", testForgetExceptWaits},
		{"ForgetExceptRaces", testForgetExceptRaces},
		{"ForgetOverHTTP", testForgetOverHTTP},
		{"CreateAddsExceptions", testCreateAddsExceptions},
		{"RefusedTwice", testRefusedTwice},
		{"Alarm", testAlarm},
		{"UndoUnanswered", testUndoUnanswered},
		{"RefusedInDoubt", testRefusedInDoubt},
		{"Ongoing", testOngoing},
		{"CallerGone", testCallerGone},
	}, databases.Pgx, databases.Maria)
}

func inDatabases(t *testing.T, tests []dbTest, clients ...string) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		for _, c := range tests {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, newWorld(t, open(t)))
			})
		}
	}, clients...)
}
