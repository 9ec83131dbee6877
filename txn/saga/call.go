package saga

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// A Call is one call of an action or an undo. Its Transaction is the saga's id, its
// Branch the step's key, or its name where it has an index, which is the Step then;
// its Operation is [branch.Do] or [branch.Undo].
type Call struct {
	branch.Call
	Type    string          // the definition's name
	Outputs Outputs         // of the steps that are done
	Input   json.RawMessage // the saga's
	Edited  bool            // an operator gave the step another input, which it is called with
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

// Heartbeat says that the action or undo that ctx was made for is still at work: its
// timeout counts from now on, up to [Action.MaxTime]. It is false if its time is up,
// or ctx is no call's. It does not block.
func Heartbeat(ctx context.Context) bool { return coordinator.Heartbeat(ctx) }

// All is every output as JSON, by the step's key.
func (o Outputs) All() map[string]json.RawMessage {
	all := maps.Clone(o.steps)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	return all
}
