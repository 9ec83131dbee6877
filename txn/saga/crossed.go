package saga

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An operator's edit can cross a call that is under way with the input before it: the
// target has that one's effect then, and answers the call with the new input as it answered
// the first one, because both have one key. Nobody can prevent that; who made the call
// finds it out when it returns.

// lateCall is a call that succeeded, and of which the journal does not know yet.
type lateCall struct {
	input []byte
	undo  bool
}

// crossings looks for edits that calls have crossed whose answer the journal refused, and
// reports them. It has a bound of its own, because serving may have ended.
func (d *drive) crossings() {
	for key, late := range d.late {
		ctx, end := context.WithTimeout(context.WithoutCancel(d.Context()), 10*time.Second)
		d.crossed(ctx, key, late)
		end()
	}
}

func (d *drive) crossed(ctx context.Context, key string, late lateCall) {
	j := d.engine.coordinator.Journal()
	_, m, err := read(ctx, j, d.ID())
	if err != nil {
		return // it cannot be found out
	}
	p := m.find(key)
	if p == nil || !p.edited || bytes.Equal(p.input, late.input) {
		return
	}
	w := why{Error: fmt.Sprintf("a call with the input before its edit, %s, was done: the target may have that one's effect", cut(string(late.input), 200))}
	err = NewOperator(j).append(ctx, "report", d.ID(), key, func(m *machine) ([]journal.Entry, error) {
		if m.over {
			return nil, nil // nothing can stand behind an end
		}
		return []journal.Entry{record(recordCrossed, key, w)}, nil
	})
	if f := d.engine.options.Hooks.Crossed; f != nil {
		f(observe.SagaCrossed{Saga: d.ID(), Type: d.plan.key(), Step: key, Undo: late.undo, Before: cut(string(late.input), longestTried),
			After: cut(string(p.input), longestTried), Err: err})
	}
}

// cross takes that a call with the input before an edit was done.
func (m *machine) cross(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	p := m.find(e.Step)
	if p == nil || !p.edited {
		return errOrder
	}
	p.crossed = w.Error
	return nil
}
