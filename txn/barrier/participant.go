package barrier

import (
	"context"
	"encoding/json"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// A Participant answers all operations of a branch, in transactions of its own. T is the user's
// transaction, I the input of a do, try or prepare, and O its output. Input and output are JSON
// on the wire. It is safe for concurrent use if its functions are.
type Participant[T, I, O any] struct {
	DB    driver.BeginnerAt[T]
	Table Table
	// Do is the function of [Do]. It is required.
	Do func(ctx context.Context, tx T, input I) (O, error)
	// Confirm is the function of [Confirm]; nil confirms without further work.
	Confirm func(ctx context.Context, tx T, done O) error
	// Undo is the function of [Undo]; nil undoes without further work.
	Undo func(ctx context.Context, tx T, done *O) error
}

// Call answers the call of ctx. Pass it to branchhttp.Handler.
func (p *Participant[T, I, O]) Call(ctx context.Context, input []byte) (output []byte, err error) {
	c := branch.From(ctx)
	switch e, ok := operations[c.Operation]; {
	case ok && e == finish:
		confirm := p.Confirm
		if confirm == nil {
			confirm = func(context.Context, T, O) error { return nil }
		}
		return nil, Confirm(ctx, p.DB, p.Table, confirm)
	case ok && e == back:
		undo := p.Undo
		if undo == nil {
			undo = func(context.Context, T, *O) error { return nil }
		}
		return nil, Undo(ctx, p.DB, p.Table, undo)
	}
	if p.Do == nil {
		return nil, failure.Bug("pass barrier", c.Key(), "there is no function to run")
	}
	var in I
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, failure.Bug("pass barrier", c.Key(), "decode input as %T: %w", in, err)
	}
	done, err := Do(ctx, p.DB, p.Table, input, func(ctx context.Context, tx T) (O, error) { return p.Do(ctx, tx, in) })
	if err != nil {
		return nil, err
	}
	return json.Marshal(done)
}
