package saga

import (
	"context"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A Call is one call of an action or an undo. Its Transaction is the saga's id, its
// Branch the step's name, its Operation [branch.Do] or [branch.Undo].
type Call struct {
	branch.Call
	Type    string  // the definition's name
	Outputs Outputs // of the steps that are done
}

type callKey struct{}

func with(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// From is the call that ctx was made for; the zero Call outside of actions and
// undos.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	c.Call = branch.From(ctx)
	return c
}
