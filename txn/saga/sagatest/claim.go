package sagatest

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// began is when virtual time begins, so that tokens are plausible.
var began = time.Now()

// claim is that of an engine on its journal; it lasts as long as the engine.
type claim struct {
	token interlock.Token
	ctx   context.Context
}

// grant is the claim of the n-th engine.
func grant(ctx context.Context, n int64) (claim, error) {
	token, err := interlock.NewToken(interlock.CounterAt(began)+n, 0)
	return claim{token, ctx}, err
}

func (c claim) Name() string             { return "explored" }
func (c claim) Owner() string            { return "sagatest" }
func (c claim) Token() interlock.Token   { return c.token }
func (c claim) Context() context.Context { return c.ctx }
func (c claim) Valid() bool              { return c.ctx.Err() == nil }
func (c claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}
