package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// tccRequest is a requested TCC transaction.
type tccRequest struct {
	Type     string          `json:"type"`
	Branches []bookingBranch `json:"branches"`
}

type bookingBranch struct {
	Name  string          `json:"name"`
	URL   string          `json:"url"`
	Input json.RawMessage `json:"input,omitempty"`
}

// tccView is the answer for a TCC transaction.
type tccView struct {
	coordinator.Summary
	Holds map[string]json.RawMessage `json:"holds,omitempty"`
}

// ask is the request of a branch at an address; the journal stores it.
type ask struct {
	URL   string          `json:"url"`
	Input json.RawMessage `json:"input,omitempty"`
}

// remote is the resource of all branches over HTTP.
type remote struct{ service *Service }

func (s *Service) remoteResource() tcc.Definition[ask, json.RawMessage] {
	return tcc.Define("http", tcc.Resource[ask, json.RawMessage](remote{s})).Target(func(q ask) string { return host(q.URL) })
}

// Try implements [tcc.Resource].
func (r remote) Try(ctx context.Context, q ask, _ time.Time) (json.RawMessage, error) {
	return output(r.service.post(ctx, q.URL, branch.From(ctx), q.Input)) // the call has the time
}

// Confirm implements [tcc.Resource].
func (r remote) Confirm(ctx context.Context, q ask, _ json.RawMessage) error {
	_, err := r.service.post(ctx, q.URL, branch.From(ctx), q.Input)
	return err
}

// Cancel implements [tcc.Resource].
func (r remote) Cancel(ctx context.Context, q ask, _ *json.RawMessage) error {
	_, err := r.service.post(ctx, q.URL, branch.From(ctx), q.Input)
	return err
}

// output returns JSON, also for an empty answer.
func output(text []byte, err error) (json.RawMessage, error) {
	if len(text) == 0 {
		text = []byte("null")
	}
	return text, err
}

func (s *Service) runTCC(r *http.Request) (any, error) {
	b, wait, err := readWaiting[tccRequest](r)
	if err != nil {
		return nil, err
	}
	resource := s.remoteResource()
	var branches []tcc.Branch
	tries := map[string]tcc.Try[ask, json.RawMessage]{}
	for _, of := range b.Branches {
		if err := s.permitted(of.URL); err != nil {
			return nil, err
		}
		tries[of.Name] = resource.Try(ask{of.URL, of.Input}).As(of.Name)
		branches = append(branches, tries[of.Name])
	}
	o, err := s.tcc.Submit(r.Context(), b.Type, r.PathValue("id"), branches...)
	if o.Decision == "" {
		return nil, err
	}
	if settled, err := s.settledTCC(r.Context(), o, wait); err == nil { // the decision does not depend on it
		o = settled
	}
	v := tccView{summary(o.Summary), map[string]json.RawMessage{}}
	for name, try := range tries {
		if hold, err := try.OutputOf(o); err == nil {
			v.Holds[name] = hold
		}
	}
	return v, nil
}

// settledTCC waits for the end of a decided transaction.
func (s *Service) settledTCC(ctx context.Context, o tcc.Outcome, wait time.Duration) (tcc.Outcome, error) {
	if wait == 0 {
		return o, nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	settled, err := s.tcc.Wait(ctx, o.ID)
	if settled.State != "" {
		return settled, nil // the outcome has its end
	}
	if ended(ctx, err) {
		return o, nil
	}
	return o, err
}

func (s *Service) showTCC(r *http.Request) (any, error) {
	wait, err := waiting(r)
	if err != nil {
		return nil, err
	}
	o, err := s.tcc.Look(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	o, err = s.settledTCC(r.Context(), o, wait)
	return tccView{Summary: summary(o.Summary)}, err
}

// decideTCC answers a participant whose hold has expired.
func (s *Service) decideTCC(r *http.Request) (any, error) {
	q, err := read[struct {
		Branch string `json:"branch"`
	}](r)
	if err != nil {
		return nil, err
	}
	d, err := s.tcc.Decide(r.Context(), r.PathValue("id"), q.Branch)
	return decisionView{string(d)}, err
}

// decisionView is a decision.
type decisionView struct {
	Decision string `json:"decision"`
}
