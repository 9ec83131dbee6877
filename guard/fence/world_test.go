package fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

// body is the function that runs in a transaction.
type body func(ctx context.Context, db driver.SQL) error

// TestMarks runs every test against one server of each kind, with each of its
// clients, each test in its own database.
func TestMarks(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, w world)
	}{
		{"stale tokens are refused", testStale},
		{"strict marks refuse equal tokens", testStrict},
		{"absurd tokens brick nothing", testAbsurd},
		{"a refusal leaves the mark as it is", testRefusedAndCommitted},
		{"who comes later waits and sees what was committed", testWaits},
		{"racing writers lose no update", testRace},
		{"no snapshot is from before the last write", testSnapshots},
		{"waiting is bounded", testBoundedWait},
		{"a stuck transaction blocks nobody for long", testStuck},
		{"an idle session cannot commit", testIdleSession},
		{"a long statement ends with the claim", testLongStatement},
		{"errors and panics roll back", testRollsBack},
		{"an ended claim is refused", testEnded},
		{"a claim that ends in the queue is refused", testEndedByEntering},
		{"the function's context ends with the claim", testContext},
		{"settings are given back", testSettings},
		{"a lost reply to enter is no outcome", testLostEnter},
		{"a long wait shortens the bound", testBoundAfterWait},
		{"a column guards its row", testColumn},
		{"a column does not guard inserts", testColumnInserts},
		{"a column does not guard other rows", testColumnOtherRows},
		{"a column needs a unique row", testColumnRows},
		{"marks are shown and rebased", testRebase},
		{"marks are listed", testListed},
		{"an early snapshot is noticed", testEarlySnapshot},
		{"names are data", testNames},
		{"a shared mark is not raised", testShared},
	}
	eachWorld(t, func(t *testing.T, open func(*testing.T) world) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, open(t))
			})
		}
	})
}

// eachWorld runs test on every database.
func eachWorld(t *testing.T, test func(t *testing.T, open func(*testing.T) world)) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		test(t, func(t *testing.T) world { return newWorld(t, open(t)) })
	})
}

// world is one database with the tables of this test.
type world struct {
	*databases.DB
	system
	table fence.Table
}

func newWorld(t *testing.T, db *databases.DB) world {
	t.Helper()
	w := world{DB: db, system: systems[db.Dialect]}
	w.Do(t, w.table.Create)
	w.Exec(t, `create table account (id varchar(64) primary key, balance bigint not null, fence bigint)`,
		`insert into account (id, balance) values ('alice', 100), ('bob', 100)`)
	return w
}

// reach returns w with other connections to its database.
func (w world) reach(t *testing.T, url string) world {
	t.Helper()
	db, closed, err := databases.Connect(context.WithoutCancel(t.Context()), w.Client, url)
	ok(t, err)
	t.Cleanup(closed)
	other := *w.DB
	other.BeginnerAt = db
	w.DB = &other
	return w
}

// tx is fence.Tx.
func (w world) tx(ctx context.Context, marks fence.Marks, c interlock.Claim, resource string, fn body) error {
	return fence.Tx(ctx, w.DB, marks, c, resource, fn)
}

func (w world) text(t *testing.T, query string) string {
	t.Helper()
	return databases.One[string](t, w.DB, query)
}

// mark is the mark of resource in w's table.
func (w world) mark(t *testing.T, resource string) (m driver.Mark) {
	t.Helper()
	w.Do(t, func(ctx context.Context, db driver.SQL) (err error) {
		m, err = w.table.Show(ctx, db, resource)
		return err
	})
	return m
}

// enter enters in its own transaction, and commits.
func (w world) enter(t *testing.T, marks fence.Marks, resource string, token interlock.Token) error {
	t.Helper()
	return w.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
		return marks.Enter(ctx, db, resource, token, "tester")
	})
}

// token returns the n-th token of a system whose counter started just now.
func token(n int) interlock.Token {
	t, err := interlock.NewToken(start+int64(n), 0)
	if err != nil {
		panic(err)
	}
	return t
}

var start = interlock.CounterAt(time.Now())

type claim = testbed.Claim

func grant(n int, ttl time.Duration) *claim {
	return testbed.NewClaim("alice", fmt.Sprintf("owner of %d", token(n)), token(n), ttl)
}

func wantStale(t *testing.T, err error, seen, got interlock.Token) {
	t.Helper()
	if stale, found := errors.AsType[*interlock.StaleTokenError](err); !found || stale.Seen != seen || stale.Got != got || interlock.Kind(err) != interlock.Definite {
		t.Errorf("%v (%v), want a refusal of %d for %d", err, interlock.Kind(err), got, seen)
	}
}

var ok, wantKind = testbed.OK, testbed.WantKind

// blocked waits until n sessions of w's database wait for a lock.
func (w world) blocked(t *testing.T, n int) {
	t.Helper()
	testbed.Eventually(t, "a session waits", bound, func() bool { return w.Waiting(t) == int64(n) })
}
