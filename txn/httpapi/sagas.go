package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaView is the answer for a saga.
type sagaView struct {
	coordinator.Summary
	Outputs map[string]json.RawMessage `json:"outputs"`
	Crossed []saga.StepError           `json:"crossed,omitempty"`
}

// longestOrder leaves room in a journal's payload for the fields around the order.
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
	if n := count(o.Steps); n > s.options.Steps {
		return nil, badRequest("the saga has %d steps; at most %d are allowed: split it into several sagas", n, s.options.Steps)
	}
	if err := s.permittedSteps(o.Steps); err != nil {
		return nil, err
	}
	at, err := s.checkStart(o)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, badRequest("the request cannot be stored: %v", err)
	}
	if len(text) > longestOrder {
		return nil, tooLong("the stored part of the request")
	}
	id := r.PathValue("id")
	definition := kind
	if o.OnEnd != "" {
		definition = kindReported
	}
	if err := s.sagas.StartAt(r.Context(), definition, id, text, at); err != nil {
		return nil, err
	}
	return showDone(s.sagaAfter(r.Context(), id, wait))
}

func (s *Service) showSaga(r *http.Request) (any, error) {
	wait, err := waiting(r)
	if err != nil {
		return nil, err
	}
	return s.sagaAfter(r.Context(), r.PathValue("id"), wait)
}

// sagaAfter returns a saga once it has ended, or its state after wait.
func (s *Service) sagaAfter(ctx context.Context, id string, wait time.Duration) (any, error) {
	if wait > 0 {
		waited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		o, err := s.sagas.Wait(waited, id)
		if err == nil || o.State.Final() {
			return viewSaga(o), nil // the outcome has its end
		}
		if !ended(waited, err) {
			return nil, err
		}
	}
	o, err := s.sagas.Look(ctx, id)
	return viewSaga(o), err
}

func viewSaga(o saga.Outcome) sagaView {
	o.Type = TypeOf(o)
	return sagaView{summary(o.Summary), o.Outputs.All(), o.Crossed}
}

// TypeOf returns the type of a saga: the definition of its engine, or for a saga over HTTP the type of
// its order.
func TypeOf(o saga.Outcome) string {
	var as order
	if !isOrder(o.Type) || json.Unmarshal(o.Input, &as) != nil || as.Type == "" {
		return o.Type
	}
	return as.Type
}
