package countermeasure_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound bounds the wait of a test for a condition.
const bound = 30 * time.Second

// world is one database with all tables, reached by one client.
type world struct {
	*testing.T
	*databases.DB
	locks countermeasure.SemanticLock
	file  countermeasure.VersionFile
	sum   countermeasure.Sum
	stage countermeasure.Staging
}

// newWorld has an account of 100, and an item of price 10.
func newWorld(t *testing.T, db *databases.DB) world {
	w := world{T: t, DB: db,
		sum:   countermeasure.Sum{Table: "account", Key: "id", Column: "balance"},
		stage: countermeasure.Staging{Table: "item", Key: []string{"id"}, Columns: []string{"price", "name"}},
	}
	key, text := `text collate "C"`, `text`
	if db.Dialect == driver.MariaDB {
		key, text = `varchar(64)`, `longtext character set utf8mb4`
	}
	db.Exec(t,
		`create table account (id `+key+` primary key, balance bigint not null, version bigint)`,
		`insert into account (id, balance) values ('a', 100), ('b', 100)`,
		`create table item (id bigint primary key, price bigint not null, name `+text+`, note `+text+`)`,
		`insert into item values (1, 10, 'chair', 'kept')`)
	db.Do(t, w.locks.Create)
	db.Do(t, w.file.Create)
	db.Do(t, w.stage.Create)
	db.Do(t, countermeasure.ByValue{}.Create)
	return w
}

// TestSQL runs every test on each database by each client, in a separate database.
func TestSQL(t *testing.T) {
	tests := []struct {
		name string
		test func(w world)
	}{
		{"a flag is one owner's", testFlagIsOneOwners},
		{"a flag is prolonged, not shortened", testFlagIsProlongedNotShortened},
		{"an expired flag stands", testExpiredFlagStands},
		{"the flag of an ended transaction is taken over", testFlagOfAnEndedTransactionIsTakenOver},
		{"check and vacant hold", testCheckAndVacantHold},
		{"a flag that is rolled back is none", testRolledBackFlagIsNone},
		{"an early snapshot is refused", testEarlySnapshotIsRefused},
		{"racing sagas flag one at a time", testRacingSagasFlagOneAtATime},
		{"one takes over", testOneTakesOver},
		{"sweep forgets what is nobody's", testSweepForgetsWhatIsNobodys},
		{"a deadlock of flags is found", testDeadlockOfFlags},
		{"bad intents", testBadIntents},
		{"sagas lose no update", testSagasLoseNoUpdate},
		{"sagas read nothing dirty", testSagasReadNothingDirty},
		{"sagas read the same twice", testSagasReadTheSameTwice},
		{"the order of steps decides what can be undone", testOrderOfSteps},
		{"a sum keeps its bounds", testSumKeepsItsBounds},
		{"bad sums", testBadSums},
		{"room that is being made is waited for", testRoomIsWaitedFor},
		{"calls come in any order", testCallsInAnyOrder},
		{"a refused call is not logged", testRefusedCallIsNotLogged},
		{"a refused call stays so", testRefusedCallStaysSo},
		{"racing transfers lose no money", testRacingTransfers},
		{"early snapshots do not matter to differences", testEarlySnapshots},
		{"an operation is done once, and not after its cancellation", testVerdicts},
		{"what cannot be reversed is replayed", testReplay},
		{"the log is in order", testLogIsInOrder},
		{"bad operations", testBadOperations},
		{"old operations are forgotten", testOldOperationsAreForgotten},
		{"staged rows are seen at once", testStagedRowsAreSeenAtOnce},
		{"rows are published once", testPublishedOnce},
		{"rows are published under their keys", testPublishedUnderItsKey},
		{"tables stand elsewhere", testOtherSchema},
		{"racing publishers show no half", testRacingPublishers},
		{"leftovers", testLeftovers},
		{"bad staging", testBadStaging},
		{"odd names", testOddNames},
		{"reread", testReread},
		{"a row that was created again is another one", testRereadOfAnotherRow},
		{"who rereads waits", testRereadWaits},
		{"a decision stands", testDecided},
		{"costs", testCosts},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(newWorld(t, open(t)))
			})
		}
	})
}

// in runs fn in a separate transaction, which also ends if fn ends the test.
func (w world) in(fn func(ctx context.Context, db driver.SQL) error) error {
	ctx := context.Background()
	tx, err := w.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a COMMIT it does nothing
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// balance returns the balance of an account.
func (w world) balance(id string) int64 {
	w.Helper()
	return databases.One[int64](w.T, w.DB, `select balance from account where id = '`+id+`'`)
}

func (w world) price() int64 {
	w.Helper()
	return databases.One[int64](w.T, w.DB, `select price from item where id = 1`)
}

func (w world) acquire(i countermeasure.Intent) error {
	return w.in(func(ctx context.Context, db driver.SQL) error { return w.locks.Acquire(ctx, db, i) })
}

func (w world) release(resource, owner string) (was bool) {
	w.Helper()
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
		was, err = w.locks.Release(ctx, db, resource, owner)
		return err
	})
	return was
}

func (w world) flag(resource string) (f countermeasure.Flag) {
	w.Helper()
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
		f, err = w.locks.Show(ctx, db, resource)
		return err
	})
	return f
}

// expire makes all flags expired, by the database's clock.
func (w world) expire() {
	w.Helper()
	earlier := "until_at - interval '100 days'"
	if w.Dialect == driver.MariaDB {
		earlier = "until_at - interval 100 day"
	}
	w.Exec(w.T, `update interlock_semantic_lock set until_at = `+earlier)
}

func intent(owner string) countermeasure.Intent {
	return countermeasure.Intent{Resource: "account/a", Owner: owner, Purpose: "a test"}
}

var ok, wantKind = txntest.OK, txntest.WantKind

// wants requires an error of a type, of a kind, and returns it.
func wants[E error](t testing.TB, err error, kind interlock.ErrorKind) (e E) {
	t.Helper()
	if !errors.As(err, &e) || interlock.Kind(err) != kind {
		t.Fatalf("%v (%v), want a %T of kind %v", err, interlock.Kind(err), e, kind)
	}
	return e
}

// wantHeld requires a HeldError of an owner.
func wantHeld(t testing.TB, err error, owner string) countermeasure.Flag {
	t.Helper()
	e := wants[*countermeasure.HeldError](t, err, interlock.Retryable)
	var portable *interlock.HeldError
	if e.Flag.Owner != owner || !errors.Is(err, interlock.ErrHeld) || !errors.As(err, &portable) || portable.Owner != owner || !portable.Until.Equal(e.Flag.Until) {
		t.Errorf("%v (%+v), want one of %q", err, portable, owner)
	}
	return e.Flag
}

// on returns the value for the dialect.
func on[V any](w world, postgres, mariadb V) V {
	if w.Dialect == driver.MariaDB {
		return mariadb
	}
	return postgres
}
