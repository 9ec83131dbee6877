package web

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaView is a saga as it is shown.
type sagaView struct {
	ID      string                     `json:"id"`
	Type    string                     `json:"type"`
	State   string                     `json:"state"`
	Reason  string                     `json:"reason,omitempty"`
	Outputs map[string]json.RawMessage `json:"outputs"`
	Skipped []string                   `json:"skipped,omitempty"`
	Dead    []deadStep                 `json:"dead,omitempty"`
}

// longestOrder leaves room in the payload of a journal for what stands around it.
const longestOrder = driver.MaxPayload - 1<<10

func (s *Service) startSaga(r *http.Request) (any, error) {
	wait, err := waiting(r)
	if err != nil {
		return nil, err
	}
	o, err := read[order](r)
	if err != nil {
		return nil, err
	}
	if err := s.permittedSteps(o.Steps); err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, badRequest("the request cannot be kept: %v", err)
	}
	if len(text) > longestOrder {
		return nil, tooLong("what is kept of the request")
	}
	id := r.PathValue("id")
	if err := s.sagas.Start(r.Context(), kind, id, text); err != nil {
		return nil, err
	}
	return done(s.sagaAfter(r.Context(), id, wait))
}

func (s *Service) showSaga(r *http.Request) (any, error) {
	wait, err := waiting(r)
	if err != nil {
		return nil, err
	}
	return s.sagaAfter(r.Context(), r.PathValue("id"), wait)
}

// sagaAfter is a saga once it has ended, or where it stands after a time.
func (s *Service) sagaAfter(ctx context.Context, id string, wait time.Duration) (any, error) {
	if wait > 0 {
		waited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		o, err := s.sagas.Wait(waited, id)
		if err == nil || o.State.Final() {
			return viewSaga(o), nil // how it has ended stands in it
		}
		if !ended(waited, err) {
			return nil, err
		}
	}
	o, err := s.sagas.Look(ctx, id)
	return viewSaga(o), err
}

// deadStep is a step whose undo was given up.
type deadStep struct {
	Step  string `json:"step"`
	Error string `json:"error"`
}

// sagaHelp is who helps a saga, why, and with which step.
type sagaHelp struct {
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	Step   string          `json:"step,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
}

// helpSaga is retry, skip, resolve and now.
func (s *Service) helpSaga(r *http.Request) (any, error) {
	if _, err := waiting(r); err != nil {
		return nil, err
	}
	who, err := read[sagaHelp](r)
	if err != nil {
		return nil, err
	}
	id, operator, by := r.PathValue("id"), saga.NewOperator(s.journal), saga.By{Actor: who.Actor, Reason: who.Reason}
	switch act := r.PathValue("act"); act {
	case "retry":
		if who.Input != nil && who.Step != "" {
			who.Input, err = s.edited(r.Context(), id, who.Step, who.Input)
		}
		if err == nil {
			err = operator.Retry(r.Context(), id, who.Step, who.Input, by)
		}
	case "skip":
		err = operator.Skip(r.Context(), id, who.Step, by)
	case "resolve":
		err = operator.Resolve(r.Context(), id, by)
	case "abort":
		err = operator.Abort(r.Context(), id, by)
	case "now":
		err = operator.Now(r.Context(), id, by)
	default:
		return nil, badRequest("there is no %q: it is retry, skip, resolve, abort or now", act)
	}
	if err != nil {
		return nil, err
	}
	s.nudge(id)
	return done(s.showSaga(r))
}

// edited is the input of a step as the journal keeps it: its order, in which the step
// has another input, and everything else as it was.
func (s *Service) edited(ctx context.Context, id, step string, input json.RawMessage) (json.RawMessage, error) {
	o, err := s.sagas.Look(ctx, id)
	if err != nil || o.Type != kind { // a saga of this process's own has what its step takes
		return input, err
	}
	var as order
	if err := json.Unmarshal(o.Input, &as); err != nil {
		return nil, badRequest("the input of saga %q is not an order: %v", id, err)
	}
	of := find(as.Steps, step)
	if of == nil {
		return nil, badRequest("saga %q has no step %q", id, step)
	}
	of.Input = input
	return json.Marshal(as)
}

func viewSaga(o saga.Outcome) sagaView {
	var as order // what it calls itself
	if o.Type != kind || json.Unmarshal(o.Input, &as) != nil {
		as.Type = o.Type
	}
	v := sagaView{ID: o.ID, Type: as.Type, State: string(o.State), Reason: o.Reason, Outputs: o.Outputs.All(), Skipped: o.Skipped}
	for _, d := range o.Dead {
		v.Dead = append(v.Dead, deadStep{d.Step, d.Err})
	}
	return v
}
