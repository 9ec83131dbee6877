package txntest

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
)

// Token is the n-th of a system whose counter started when the tests did.
func Token(n int64) interlock.Token { return token(interlock.CounterAt(Began) + n) }

// Present is a token for a process that starts now.
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

// Grant is the n-th claim.
func Grant(n int64) *Claim { return Owner(context.Background(), Token(n)) }

// Owner is the claim of a token, which ends with ctx too.
func Owner(ctx context.Context, token interlock.Token) *Claim {
	c := &Claim{token: token}
	c.ctx, c.End = context.WithCancelCause(ctx)
	return c
}

// Name is that of any shard.
func (c *Claim) Name() string { return "shard" }

// Owner is the same for all claims.
func (c *Claim) Owner() string { return "tester" }

// Token is that of the grant.
func (c *Claim) Token() interlock.Token { return c.token }

// Context ends with the claim.
func (c *Claim) Context() context.Context { return c.ctx }

// Valid reports whether it has neither ended nor expired.
func (c *Claim) Valid() bool { return !c.Expired.Load() && c.ctx.Err() == nil }

// Remaining is a minute while it is valid.
func (c *Claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
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
