package rehearsal

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// began is when virtual time begins, so that tokens are plausible.
var began = time.Now()

// claim is that of a coordinator on its journal; it lasts as long as that.
type claim struct {
	token interlock.Token
	ctx   context.Context
}

// Grant is the claim of the n-th coordinator, which lasts until ctx ends.
func Grant(ctx context.Context, n int64) (interlock.Claim, error) {
	token, err := interlock.NewToken(interlock.CounterAt(began)+n, 0)
	return claim{token, ctx}, err
}

func (c claim) Name() string             { return "explored" }
func (c claim) Owner() string            { return "rehearsal" }
func (c claim) Token() interlock.Token   { return c.token }
func (c claim) Context() context.Context { return c.ctx }
func (c claim) Valid() bool              { return c.ctx.Err() == nil }
func (c claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}
