package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaHelp is who helps a saga, why, and with which step.
type sagaHelp struct {
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	Step   string          `json:"step,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
}

// helpSaga is what an operator does, but to settle.
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
		err = operator.Retry(r.Context(), id, who.Step, who.Input, by)
	case "skip":
		err = operator.Skip(r.Context(), id, who.Step, by)
	case "resolve":
		err = operator.Resolve(r.Context(), id, by)
	case "abort":
		err = operator.Abort(r.Context(), id, by)
	case "now":
		err = operator.Now(r.Context(), id, by)
	default:
		return nil, badRequest("there is no %q: it is retry, skip, settle, resolve, abort or now", act)
	}
	if err != nil {
		return nil, err
	}
	s.nudge(id)
	return done(s.showSaga(r))
}

// settlement is what somebody has found out about a step that does not answer.
type settlement struct {
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	Step   string          `json:"step"`
	Done   *bool           `json:"done"`
	Output json.RawMessage `json:"output,omitempty"`
}

func (s *Service) settleSaga(r *http.Request) (any, error) {
	if _, err := waiting(r); err != nil {
		return nil, err
	}
	found, err := read[settlement](r)
	if err != nil {
		return nil, err
	}
	id, operator, by := r.PathValue("id"), saga.NewOperator(s.journal), saga.By{Actor: found.Actor, Reason: found.Reason}
	switch {
	case found.Done == nil || !*found.Done && found.Output != nil:
		return nil, badRequest(`say by "done" whether the step was, and its "output" only if it was`)
	case *found.Done:
		err = operator.Done(r.Context(), id, found.Step, found.Output, by)
	default:
		err = operator.NotDone(r.Context(), id, found.Step, by)
	}
	if err != nil {
		return nil, err
	}
	s.nudge(id)
	return done(s.showSaga(r))
}
