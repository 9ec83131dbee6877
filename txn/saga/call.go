package saga

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// A Call describes one call of an action or undo. Its Transaction is the saga's id. Its Branch is
// the step's key; for a step with an index, Branch is the name and Step the index. Its Operation
// is branch.Do or branch.Undo.
type Call struct {
	branch.Call
	Type    string          // the definition's name
	Outputs Outputs         // of completed steps
	Input   json.RawMessage // the saga's
	Edited  bool            // an operator has changed the step's input
}

type callKey struct{}

func with(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// From returns the call that ctx belongs to, or the zero Call outside of actions and undos.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	c.Call = branch.From(ctx)
	return c
}

// Heartbeat restarts the timeout of the action or undo that ctx belongs to, up to
// [Action.MaxTime] in total. It returns false if the time is over or ctx belongs to no call. It
// does not block.
func Heartbeat(ctx context.Context) bool { return coordinator.Heartbeat(ctx) }

// All returns every output as JSON, by the step's key.
func (o Outputs) All() map[string]json.RawMessage {
	all := maps.Clone(o.steps)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	return all
}
