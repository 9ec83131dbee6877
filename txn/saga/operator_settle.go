package saga

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// What operators know, or want, before it is decided.

// Abort has a saga undone that has not called its pivot: what it has done, and what may
// have happened of what is under way. It is UNDOING when Abort returns, or has ended if
// there is nothing to undo. The actor and the reason are the saga's reason.
func (o *Operator) Abort(ctx context.Context, id string, by By) error {
	return o.act(ctx, "abort", id, "", by, func(m *machine) ([]journal.Entry, error) {
		if p := m.pivot(); (m.state == Running || m.before == Running) && p != nil && p.fate != refused {
			return nil, fmt.Errorf("its pivot %q may have happened: it goes on until that is known", p.key)
		}
		return []journal.Entry{record(recordDecide, decideAbort, why{Error: said(fmt.Errorf("%s: %s", by.Actor, by.Reason))})}, nil
	})
}

// Done says that a step has happened which was called and did not answer, with its
// output, JSON that the step's type can take; nil is null. Most of all it is for a pivot
// whose target is gone: only a person who looks can know its outcome. It is
// possible once the steps before it have been done.
func (o *Operator) Done(ctx context.Context, id, step string, output json.RawMessage, by By) error {
	if output == nil {
		output = json.RawMessage("null")
	}
	if !json.Valid(output) || len(output) > driver.MaxPayload {
		return bug("settle", id, fmt.Errorf("the output is not JSON, or has more than %d bytes", driver.MaxPayload))
	}
	return o.settle(ctx, id, step, by, journal.Entry{Kind: recordDone, Step: step, Data: output})
}

// NotDone says that a step has not happened which was called and did not answer, and
// never will: whatever it was sent does not arrive any more. The saga is undone then. It
// is possible up to the pivot, once the steps before it have been done.
func (o *Operator) NotDone(ctx context.Context, id, step string, by By) error {
	return o.settle(ctx, id, step, by, record(recordFailed, step, why{Error: said(fmt.Errorf("%s: %s", by.Actor, by.Reason))}))
}

func (o *Operator) settle(ctx context.Context, id, step string, by By, became journal.Entry) error {
	return o.act(ctx, "settle", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordSettle, step, note{Actor: by.Actor, Reason: by.Reason}), became}, nil
	})
}
