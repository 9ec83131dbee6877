// Package preparedtest tests the common part of participants that prepare branches in a SQL
// database, where a test needs SQL: marks, manual commits, lost replies, crashes and costs.
// drivertest.RunParticipant tests the rest.
package preparedtest

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// bound limits the wait for a condition.
const bound = 20 * time.Second

// Preparer is the participant of a SQL database.
type Preparer[T any] interface {
	driver.Preparer[T]
	// Forget deletes marks that an earlier Forget saw before that time.
	Forget(ctx context.Context, before time.Time) (int64, error)
}

// A Database is one kind of database with one of its clients.
type Database[T any] struct {
	Start func(tb testing.TB, settings ...string) *testbed.Server
	// Open opens a participant and a pool beside it, which may be the same, and closes them
	// by t.Cleanup. Without a URL it passes no pool. Empty marks mean the default.
	Open   func(ctx context.Context, t testing.TB, url, namespace, marks string) (Preparer[T], *sql.DB, error)
	Exec   func(ctx context.Context, in T, query string) error
	Insert string // a statement that inserts an account of a random name
	Schema string // of tables
	Quote  string // around names
	// ByHand returns the statement with which an operator finishes a branch of namespace
	// shop.
	ByHand  func(verb, transaction string) string
	Missing string // SQLSTATE of a missing table
}

// Bank is a participant with a table of accounts in its database.
type Bank[T any] struct {
	Preparer[T]
	DB *sql.DB
	of Database[T]
}

// OpenBank opens a participant with the default table of marks.
func (d Database[T]) OpenBank(t testing.TB, url, namespace string) Bank[T] {
	t.Helper()
	return d.openBank(t, url, namespace, "")
}

func (d Database[T]) openBank(t testing.TB, url, namespace, marks string) Bank[T] {
	t.Helper()
	p, db, err := d.Open(t.Context(), t, url, namespace, marks)
	testbed.OK(t, err)
	return d.BankOf(t, p, db)
}

// BankOf returns the bank of a participant.
func (d Database[T]) BankOf(t testing.TB, p Preparer[T], db *sql.DB) Bank[T] {
	t.Helper()
	b := Bank[T]{p, db, d}
	b.Do(t, `create table if not exists account (id varchar(40) primary key, balance int)`)
	return b
}

// Do runs statements.
func (b Bank[T]) Do(t testing.TB, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := b.DB.ExecContext(context.WithoutCancel(t.Context()), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// Text returns the single value of a query.
func (b Bank[T]) Text(t testing.TB, query string, args ...any) (s string) {
	t.Helper()
	if err := b.DB.QueryRowContext(context.WithoutCancel(t.Context()), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

// WantRows requires a number of accounts.
func (b Bank[T]) WantRows(t testing.TB, want string) {
	t.Helper()
	if n := b.Text(t, `select count(*) from account`); n != want {
		t.Errorf("%s rows, want %s", n, want)
	}
}

// Branch begins a branch and runs statements in it.
func (b Bank[T]) Branch(t testing.TB, x driver.XID, queries ...string) (T, driver.Preparing) {
	t.Helper()
	in, p, err := b.Begin(t.Context(), x)
	testbed.OK(t, err)
	t.Cleanup(func() { _ = p.Abandon(context.Background()) })
	for _, q := range queries {
		if err := b.of.Exec(t.Context(), in, q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	return in, p
}

// Prepared prepares a branch in which statements ran.
func (b Bank[T]) Prepared(t testing.TB, x driver.XID, queries ...string) {
	t.Helper()
	_, p := b.Branch(t, x, queries...)
	WantVote(t, p, driver.VoteYes)
}

// WantVote requires a vote without an error.
func WantVote(t testing.TB, p driver.Preparing, want driver.Vote) {
	t.Helper()
	if vote, err := p.Prepare(t.Context()); vote != want || err != nil {
		t.Fatalf("vote %v, %v; want %v", vote, err, want)
	}
}

// WantNo requires a vote of no with an error.
func WantNo(t testing.TB, p driver.Preparing, kind interlock.ErrorKind, state string) {
	t.Helper()
	vote, err := p.Prepare(t.Context())
	if WantState(t, err, kind, state); vote != driver.VoteNo {
		t.Errorf("vote %v, want no", vote)
	}
}

// Doubts returns the branches in doubt.
func (b Bank[T]) Doubts(t testing.TB) (all []driver.XID) {
	t.Helper()
	found, err := b.InDoubt(context.WithoutCancel(t.Context()))
	testbed.OK(t, err)
	for _, d := range found {
		if time.Since(d.Since).Abs() > time.Hour {
			t.Errorf("%v is in doubt since %v", d.XID, d.Since)
		}
		all = append(all, d.XID)
	}
	return all
}

// Decide commits or rolls back, and repeats Retryable errors: the server may not yet know
// that the session of the branch has ended.
func (b Bank[T]) Decide(t testing.TB, commit bool, x driver.XID) {
	t.Helper()
	finish := b.Rollback
	if commit {
		finish = b.Commit
	}
	Persist(t, func() error { return finish(context.WithoutCancel(t.Context()), x) })
}

// One returns a branch of a transaction.
func One(transaction string) driver.XID { return driver.XID{Transaction: transaction, Branch: "b"} }

// Persist repeats a call while its error is Retryable.
func Persist(t testing.TB, try func() error) {
	t.Helper()
	var err error
	testbed.Eventually(t, "an outcome", bound, func() bool {
		err = try()
		return err == nil || interlock.Kind(err) == interlock.Definite || interlock.Kind(err) == interlock.Bug
	})
	testbed.OK(t, err)
}

// WantState requires an error of a kind with a SQLSTATE; it is empty for errors that are not
// the server's.
func WantState(t testing.TB, err error, kind interlock.ErrorKind, state string) {
	t.Helper()
	var native interface{ SQLState() string }
	got := ""
	if errors.As(err, &native) {
		got = native.SQLState()
	}
	if err == nil || interlock.Kind(err) != kind || got != state {
		t.Errorf("%v: kind %v with SQLSTATE %q, want %v with %q", err, interlock.Kind(err), got, kind, state)
	}
}

// WantHeuristic requires that a branch was finished against its decision.
func WantHeuristic(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrHeuristic) {
		t.Errorf("%v, want that it was finished against its decision", err)
	}
}
