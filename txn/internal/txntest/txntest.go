// Package txntest has helpers for the tests of the packages below txn: checks, virtual time, claims,
// and a journal whose process can crash or stop at each step. The requirements are in each package's
// own tests.
package txntest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// OK ends the test if there is an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantKind requires an error of a kind, which wraps target unless that is nil.
func WantKind(t testing.TB, err error, kind interlock.ErrorKind, target error) {
	t.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		t.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, target)
	}
}

// Same requires that got equals want.
func Same(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q\nwant %q", what, got, want)
	}
}

// Second returns the error of a call, and drops its value.
func Second[V any](_ V, err error) error { return err }

// Repeat returns an error for each of n appends or calls.
func Repeat(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// Began is the start of the virtual time of a [Bubble].
var Began = time.Now()

// Bubble runs a test in virtual time that begins at the present, so that tokens are
// plausible.
func Bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(Began))
		test(t)
	})
}

// RunBubble runs a subtest in a [Bubble].
func RunBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { Bubble(t, test) })
}

// Token returns the n-th token of a system whose counter started with the tests.
func Token(n int64) interlock.Token { return token(interlock.CounterAt(Began) + n) }

// Present returns a token for a process that starts now.
func Present() interlock.Token { return token(interlock.CounterAt(time.Now())) }

func token(counter int64) interlock.Token {
	t, err := interlock.NewToken(counter, 0)
	if err != nil {
		panic(err)
	}
	return t
}

// A Claim lasts until End is called, or until Expired is set, which ends no context.
type Claim struct {
	End     context.CancelCauseFunc
	Expired atomic.Bool

	token interlock.Token
	ctx   context.Context
}

// Grant returns the n-th claim.
func Grant(n int64) *Claim { return Owner(context.Background(), Token(n)) }

// Owner returns the claim of a token, which also ends with ctx.
func Owner(ctx context.Context, token interlock.Token) *Claim {
	c := &Claim{token: token}
	c.ctx, c.End = context.WithCancelCause(ctx)
	return c
}

// Name returns the name of every shard.
func (c *Claim) Name() string { return "shard" }

// Owner returns the same owner for all claims.
func (c *Claim) Owner() string { return "tester" }

// Token returns the token of the grant.
func (c *Claim) Token() interlock.Token { return c.token }

// Context ends with the claim.
func (c *Claim) Context() context.Context { return c.ctx }

// Valid reports whether the claim has neither ended nor expired.
func (c *Claim) Valid() bool { return !c.Expired.Load() && c.ctx.Err() == nil }

// Remaining returns a minute while the claim is valid.
func (c *Claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}

// Run serves all shards under a claim of a process that starts now, until stop.
func Run(ctx context.Context, run func(ctx context.Context, c interlock.Claim) error) (stop func()) {
	c, served := Owner(ctx, Present()), make(chan error, 1)
	go func() { served <- run(ctx, c) }()
	return func() { c.End(interlock.ErrReleased); <-served }
}

// Serve serves shard 0 under the n-th claim, in a [Bubble], until the test or stop ends it.
func Serve(t testing.TB, serve func(ctx context.Context, c interlock.Claim, shard int) error, n int64) (c *Claim, stop context.CancelFunc, served chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c, served = Grant(n), make(chan error, 1)
	go func() { served <- serve(ctx, c, 0) }()
	synctest.Wait()
	t.Cleanup(func() {
		stop()
		c.End(interlock.ErrReleased)
		synctest.Wait()
	})
	return c, stop, served
}

// Counted counts the statements and commits of its transactions, without those of their Native.
type Counted struct {
	driver.BeginnerAt[driver.SQL]
	Statements, Commits int
}

// BeginAt begins a counted transaction.
func (c *Counted) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := c.BeginnerAt.BeginAt(ctx, level)
	return countedTx{tx, c}, err
}

type countedTx struct {
	driver.Tx[driver.SQL]
	c *Counted
}

func (t countedTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	t.c.Statements++
	return t.Tx.Exec(ctx, query, args...)
}

func (t countedTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	t.c.Statements++
	return t.Tx.Query(ctx, query, args, each)
}

func (t countedTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	t.c.Statements++
	return t.Tx.Bound(ctx, idle, statement)
}

func (t countedTx) Commit(ctx context.Context) error {
	t.c.Commits++
	return t.Tx.Commit(ctx)
}
