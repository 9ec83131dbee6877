package httpapi

import (
	"context"
	"iter"
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

// lists answers with a part of a protocol's transactions in the order of their ids, all or unfinished
// ones. A list that finds few among many returns early, with the id to continue after.
func lists[O any](unfinished bool, known []coordinator.State, list func(context.Context, coordinator.Filter) iter.Seq2[O, error],
	view func(O) (s coordinator.Summary, key string)) func(*http.Request) (any, error) {
	if unfinished {
		known = slices.DeleteFunc(slices.Clone(known), coordinator.State.Ended)
	}
	return func(r *http.Request) (any, error) {
		f, limit, err := filterOf(r, known)
		if err != nil {
			return nil, err
		}
		p, looked := page{Items: []listed{}}, 0
		kind := f.Type // the type of an order over HTTP is in its input
		f.Type, f.Unfinished = "", unfinished || len(f.States) > 0 && !slices.ContainsFunc(f.States, coordinator.State.Ended)
		states := f.States
		f.States = nil
		for o, err := range list(r.Context(), f) {
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
}

func (s *Service) listSagas(r *http.Request) (any, error) {
	return lists(false, saga.States, saga.NewOperator(s.journal).List, func(o saga.Outcome) (coordinator.Summary, string) {
		return viewSaga(o).Summary, o.ID
	})(r)
}

// listTCC lists unfinished transactions.
func (s *Service) listTCC(r *http.Request) (any, error) {
	return lists(true, tcc.States, tcc.NewOperator(s.journal).List, func(o tcc.Outcome) (coordinator.Summary, string) {
		return o.Summary, o.ID
	})(r)
}

// listTwoPC lists decided transactions that have not ended.
func (s *Service) listTwoPC(r *http.Request) (any, error) {
	return lists(true, twopc.States, twopc.NewOperator(s.journal).List, func(o twopc.Outcome) (coordinator.Summary, string) {
		return o.Summary, o.Key
	})(r)
}
