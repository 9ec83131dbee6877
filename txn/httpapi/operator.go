package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// change is an operator's request: actor, reason, and the arguments of the operation.
type change struct {
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	Step   string          `json:"step,omitempty"` // or branch
	Input  json.RawMessage `json:"input,omitempty"`
	Done   *bool           `json:"done,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
}

func (c change) by() coordinator.By { return coordinator.By{Actor: c.Actor, Reason: c.Reason} }

// An operation changes a transaction by hand; takes are the optional fields of its change.
type operation struct {
	do    func(ctx context.Context, id string, c change) error
	takes string
}

// operates answers a request for an operation with the transaction afterwards. key returns the journal's
// name of an id.
func (s *Service) operates(operations map[string]operation, key func(id string) string, show func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	var names []string
	for name := range operations {
		names = append(names, name)
	}
	slices.Sort(names)
	return func(r *http.Request) (any, error) {
		if _, err := waiting(r); err != nil {
			return nil, err
		}
		op, known := operations[r.PathValue("operation")]
		if !known {
			return nil, badRequest("unknown operation %q: it must be one of %s", r.PathValue("operation"), strings.Join(names, ", "))
		}
		c, err := read[change](r)
		if err != nil {
			return nil, err
		}
		for field, given := range map[string]bool{"step": c.Step != "", "input": c.Input != nil, "done": c.Done != nil, "output": c.Output != nil} {
			if given && !strings.Contains(op.takes, field) {
				return nil, badRequest("%s takes no %q", r.PathValue("operation"), field)
			}
		}
		id := r.PathValue("id")
		if err := op.do(r.Context(), id, c); err != nil {
			return nil, err
		}
		s.nudge(key(id))
		return showDone(show(r))
	}
}

// sameKey returns an id that is its own key.
func sameKey(id string) string { return id }

func stepwise(do func(ctx context.Context, id, step string, by coordinator.By) error) operation {
	return operation{func(ctx context.Context, id string, c change) error { return do(ctx, id, c.Step, c.by()) }, "step"}
}

func whole(do func(ctx context.Context, id string, by coordinator.By) error) operation {
	return operation{func(ctx context.Context, id string, c change) error { return do(ctx, id, c.by()) }, ""}
}

func (s *Service) operateSaga() func(*http.Request) (any, error) {
	o := saga.NewOperator(s.journal)
	return s.operates(map[string]operation{
		"retry": {func(ctx context.Context, id string, c change) error {
			if c.Input == nil {
				return o.Retry(ctx, id, c.Step, c.by())
			}
			return o.Edit(ctx, id, c.Step, c.Input, c.by())
		}, "step input"},
		"skip": stepwise(o.Skip), "resolve": whole(o.Resolve), "abort": whole(o.Abort), "now": whole(o.Now),
		"settle": {func(ctx context.Context, id string, c change) error {
			switch {
			case c.Done == nil || !*c.Done && c.Output != nil:
				return badRequest(`"done" is required: true if the step was done, and only then an "output"`)
			case *c.Done:
				return o.Done(ctx, id, c.Step, c.Output, c.by())
			}
			return o.NotDone(ctx, id, c.Step, c.by())
		}, "step done output"},
	}, sameKey, s.showSaga)
}

func (s *Service) operateTCC() func(*http.Request) (any, error) {
	o := tcc.NewOperator(s.journal)
	return s.operates(map[string]operation{"retry": stepwise(o.Retry), "skip": stepwise(o.Skip), "resolve": whole(o.Resolve)}, sameKey, s.showTCC)
}

func (s *Service) operateTwoPC() func(*http.Request) (any, error) {
	o := twopc.NewOperator(s.journal)
	return s.operates(map[string]operation{"retry": whole(o.Retry), "resolve": whole(o.Resolve)}, twopc.Key, s.showTwoPC)
}
