package saga

import (
	"context"
	"net/url"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Call is one call of an action or an undo.
type Call struct {
	Saga     string          // the saga's id
	Type     string          // the definition's name
	Step     string          // the step's
	Undo     bool            // it is the step's undo
	Attempt  int             // from 1, counted by this engine
	Epoch    interlock.Token // of the engine's claim on the shard: a target can refuse lower ones by a guard
	Deadline time.Time       // when the call's context ends
	Outputs  Outputs         // of the steps that are done
}

// Key is the same for all calls that must have one effect, and no others: of one
// step of one saga, or of its undo. Hand it to the target as an idempotency key.
func (c Call) Key() string {
	way := "do"
	if c.Undo {
		way = "undo"
	}
	return url.PathEscape(c.Saga) + "/" + url.PathEscape(c.Step) + "/" + way
}

type callKey struct{}

// From is the call that ctx was made for; the zero Call outside of actions and
// undos.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}
