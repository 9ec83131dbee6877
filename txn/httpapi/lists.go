package httpapi

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// The bounds of lists: a page reads up to longestPage transactions, and has shortPage by default.
const (
	longestPage = 1000
	shortPage   = 100
)

// A listed transaction is shown without its outputs.
type listed struct {
	coordinator.Summary
	Error string `json:"error,omitempty"` // why it cannot be read
}

// summary removes what differs between identical requests: times.
func summary(s coordinator.Summary) coordinator.Summary {
	s.Due, s.Ended = time.Time{}, time.Time{}
	return s
}

// page is a part of a list. After is the id that the next part begins after; empty at the end.
type page struct {
	Items []listed `json:"items"`
	After string   `json:"after,omitempty"`
}

// filterOf parses the filter and the limit of a list.
func filterOf(r *http.Request, known []coordinator.State) (f coordinator.Filter, limit int, err error) {
	query, err := parameters(r, "state", "type", "after", "limit")
	if err != nil {
		return f, 0, err
	}
	f, limit = coordinator.Filter{Type: query.Get("type"), After: query.Get("after")}, shortPage
	for s := range strings.SplitSeq(query.Get("state"), ",") {
		if state := coordinator.State(s); slices.Contains(known, state) {
			f.States = append(f.States, state)
		} else if query.Get("state") != "" {
			return f, 0, badRequest("unknown state %q: it must be one of %s", s, coordinator.JoinStates(known))
		}
	}
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > longestPage {
			return f, 0, badRequest("limit is %q: it must be a number from 1 to %d", text, longestPage)
		}
	}
	return f, limit, nil
}

// list answers with a part of a protocol's transactions in the order of their ids, all or unfinished
// ones. A list that finds few among many returns early, with the id to continue after.
func list[O any](r *http.Request, unfinished bool, known []coordinator.State, all func(context.Context, coordinator.Filter) iter.Seq2[O, error],
	view func(O) (s coordinator.Summary, key string)) (any, error) {
	if unfinished {
		known = slices.DeleteFunc(slices.Clone(known), coordinator.State.Ended)
	}
	f, limit, err := filterOf(r, known)
	if err != nil {
		return nil, err
	}
	p, looked := page{Items: []listed{}}, 0
	kind, states := f.Type, f.States // of an order over HTTP, both are in its outcome
	f = coordinator.Filter{After: f.After, Unfinished: unfinished || len(states) > 0 && !slices.ContainsFunc(states, coordinator.State.Ended)}
	for o, err := range all(r.Context(), f) {
		s, key := view(o)
		if err != nil && s.ID == "" {
			return nil, err
		}
		one := listed{Summary: summary(s)}
		if err != nil {
			one.Error = err.Error()
		}
		if looked++; (kind == "" || kind == s.Type) && (len(states) == 0 || slices.Contains(states, s.State)) {
			p.Items = append(p.Items, one)
		}
		if len(p.Items) == limit || looked == longestPage {
			p.After = key
			break
		}
	}
	return p, nil
}

func (s *Service) listSagas(r *http.Request) (any, error) {
	return list(r, false, saga.States, saga.NewOperator(s.journal).List, func(o saga.Outcome) (coordinator.Summary, string) {
		return viewSaga(o).Summary, o.ID
	})
}

// listTCC lists unfinished transactions.
func (s *Service) listTCC(r *http.Request) (any, error) {
	return list(r, true, tcc.States, tcc.NewOperator(s.journal).List, func(o tcc.Outcome) (coordinator.Summary, string) {
		return o.Summary, o.ID
	})
}

// listTwoPC lists decided transactions that have not ended.
func (s *Service) listTwoPC(r *http.Request) (any, error) {
	return list(r, true, twopc.States, twopc.NewOperator(s.journal).List, func(o twopc.Outcome) (coordinator.Summary, string) {
		return o.Summary, o.Key
	})
}

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
	names := slices.Sorted(maps.Keys(operations))
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
