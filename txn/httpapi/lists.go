package httpapi

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// The bounds of lists: a page has at most so many transactions, and looks at so many.
const (
	longestPage = 1000
	shortPage   = 100
)

// A listed transaction is shown without its outputs.
type listed struct {
	ID     string     `json:"id"`
	Type   string     `json:"type"`
	State  string     `json:"state"`
	Reason string     `json:"reason,omitempty"`
	Dead   []deadPart `json:"dead,omitempty"`
	Error  string     `json:"error,omitempty"` // it cannot be read
}

// deadPart is a step or a branch that waits for a person.
type deadPart struct {
	Step   string `json:"step,omitempty"`
	Branch string `json:"branch,omitempty"`
	Error  string `json:"error"`
}

// page is a part of a list. The next part begins after the given id, if there is one.
type page struct {
	Items []listed `json:"items"`
	After string   `json:"after,omitempty"`
}

// filter is what a list is asked for.
type filter struct {
	states []string
	kind   string
	after  string
	limit  int
}

func filterOf(r *http.Request, known ...string) (f filter, err error) {
	query, err := parameters(r, "state", "type", "after", "limit")
	if err != nil {
		return f, err
	}
	f = filter{kind: query.Get("type"), after: query.Get("after"), limit: shortPage}
	if f.states, err = statesOf(query, known); err != nil {
		return f, err
	}
	if text := query.Get("limit"); text != "" {
		if f.limit, err = strconv.Atoi(text); err != nil || f.limit < 1 || f.limit > longestPage {
			return f, badRequest("limit is %q: it is a number from 1 to %d", text, longestPage)
		}
	}
	return f, nil
}

func statesOf(query url.Values, known []string) (states []string, err error) {
	if query.Get("state") == "" {
		return nil, nil
	}
	states = strings.Split(query.Get("state"), ",")
	for _, s := range states {
		if !slices.Contains(known, s) {
			return nil, badRequest("there is no state %q: it is one of %s", s, strings.Join(known, ", "))
		}
	}
	return states, nil
}

// takes reports whether a transaction is wanted.
func (f filter) takes(v listed) bool {
	return (f.kind == "" || f.kind == v.Type) && (len(f.states) == 0 || slices.Contains(f.states, v.State))
}

// listSagas is a part of all sagas in the order of their ids. What looks at many and
// finds few comes back early, with the id to go on after.
func (s *Service) listSagas(r *http.Request) (any, error) {
	f, err := filterOf(r, names(saga.Running, saga.Completing, saga.Undoing, saga.Succeeded, saga.Compensated, saga.DeadLetter, saga.Resolved)...)
	if err != nil {
		return nil, err
	}
	p, looked := page{Items: []listed{}}, 0
	ended := func(state string) bool {
		return slices.Contains(names(saga.Succeeded, saga.Compensated, saga.Resolved), state)
	}
	unfinished := len(f.states) > 0 && !slices.ContainsFunc(f.states, ended)
	for o, err := range saga.List(r.Context(), s.journal, saga.Filter{After: f.after, Unfinished: unfinished}) {
		if err != nil && o.ID == "" {
			return nil, err
		}
		v := viewSaga(o)
		one := listed{ID: o.ID, Type: v.Type, State: v.State, Reason: v.Reason}
		for _, d := range v.Dead {
			one.Dead = append(one.Dead, deadPart{Step: d.Step, Error: d.Error})
		}
		if err != nil {
			one.Error = err.Error()
		}
		if looked++; f.takes(one) {
			p.Items = append(p.Items, one)
		}
		if len(p.Items) == f.limit || looked == longestPage {
			p.After = o.ID
			break
		}
	}
	return p, nil
}

// listTCC is a part of the TCC transactions that have not ended.
func (s *Service) listTCC(r *http.Request) (any, error) {
	f, err := filterOf(r, names(tcc.Trying, tcc.Confirming, tcc.Cancelling, tcc.DeadLetter)...)
	if err != nil {
		return nil, err
	}
	p := page{Items: []listed{}}
	for o, err := range tcc.NewOperator(s.journal).UnfinishedAfter(r.Context(), f.after) {
		if err != nil {
			return nil, err
		}
		v := viewBooking(o)
		one := listed{ID: o.ID, Type: o.Type, State: v.State, Reason: v.Reason}
		for _, d := range v.Dead {
			one.Dead = append(one.Dead, deadPart{Branch: d.Branch, Error: d.Error})
		}
		if !f.takes(one) {
			continue
		}
		if p.Items = append(p.Items, one); len(p.Items) == f.limit {
			p.After = o.ID
			break
		}
	}
	return p, nil
}

// listTwoPC is a part of the two-phase commits that are decided and have not ended.
func (s *Service) listTwoPC(r *http.Request) (any, error) {
	f, err := filterOf(r, names(twopc.Committing, twopc.Heuristic)...)
	if err != nil {
		return nil, err
	}
	p := page{Items: []listed{}}
	for o, err := range s.twopc.UnfinishedAfter(r.Context(), f.after) {
		if err != nil {
			return nil, err
		}
		one := listed{ID: o.ID, Type: "2pc", State: string(o.State), Reason: cmp.Or(o.Halted, o.Reason)}
		for _, b := range o.Branches {
			if b.Heuristic != "" {
				one.Dead = append(one.Dead, deadPart{Branch: b.Participant, Error: b.Heuristic})
			}
		}
		if !f.takes(one) {
			continue
		}
		if p.Items = append(p.Items, one); len(p.Items) == f.limit {
			p.After = o.Key
			break
		}
	}
	return p, nil
}

func names[S ~string](all ...S) (texts []string) {
	for _, s := range all {
		texts = append(texts, string(s))
	}
	return texts
}
