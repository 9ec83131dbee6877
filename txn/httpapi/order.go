package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

// order is a requested saga. It is the saga's input, so that any process can continue it.
type order struct {
	Type    string          `json:"type"`
	Input   json.RawMessage `json:"input,omitempty"`
	Timeout duration        `json:"timeout,omitempty"`
	StartAt string          `json:"startAt,omitempty"` // RFC 3339
	OnEnd   string          `json:"onEnd,omitempty"`   // an address
	Steps   []orderStep     `json:"steps"`
}

// orderStep is a step, a group or a wait.
type orderStep struct {
	Name          string          `json:"name,omitempty"`
	Do            string          `json:"do,omitempty"`
	Undo          string          `json:"undo,omitempty"`
	Pivot         bool            `json:"pivot,omitempty"`
	Uncompensable bool            `json:"uncompensable,omitempty"`
	Input         json.RawMessage `json:"input,omitempty"`
	Timeout       duration        `json:"timeout,omitempty"`
	Retry         *retry          `json:"retry,omitempty"`
	Parallel      []orderStep     `json:"parallel,omitempty"`
	Sleep         duration        `json:"sleep,omitempty"`
	Signal        bool            `json:"signal,omitempty"`
	Within        duration        `json:"within,omitempty"`
	Else          json.RawMessage `json:"else,omitempty"`
}

// retry is a [saga.Policy].
type retry struct {
	First    duration `json:"first,omitempty"`
	Max      duration `json:"max,omitempty"`
	Attempts int      `json:"attempts,omitempty"`
	Undos    int      `json:"undos,omitempty"`
}

// kind is the definition's name in the journal; an order's own type is in its input. Orders whose end
// is reported have another definition, because the report costs a record.
const (
	kind         = "http"
	kindReported = "http_reported"
)

// defineOrder returns the definition of all sagas over HTTP: the list in their input.
func (s *Service) defineOrder(name string) saga.Definition[json.RawMessage] {
	step := saga.Step(kind, func(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
		return s.send(ctx, input, nil)
	})
	undone := step.Undo(kind, func(ctx context.Context, input json.RawMessage, out *json.RawMessage) error {
		_, err := s.send(ctx, input, out)
		return err
	})
	return saga.DefineList(name, func(text json.RawMessage) ([]stage, error) {
		var o order
		if err := json.Unmarshal(text, &o); err != nil {
			return nil, err
		}
		return stages(step, undone, o.Steps, false)
	}, undone).TimeoutOf(func(text json.RawMessage) time.Duration {
		var o order
		_ = json.Unmarshal(text, &o) // parsed before, for the stages
		return time.Duration(o.Timeout)
	})
}

// action is the type of all steps. Their input is the order, or an operator's edit.
type action = saga.Action[json.RawMessage, json.RawMessage]

type stage = saga.Stage[json.RawMessage]

// stages returns the stages of a list of steps.
func stages(plain, undone action, steps []orderStep, grouped bool) (all []stage, err error) {
	for _, of := range steps {
		switch {
		case len(of.Parallel) > 0 && !grouped:
			group, err := stages(plain, undone, of.Parallel, true)
			if err != nil {
				return nil, err
			}
			all = append(all, saga.Parallel(group...))
		case len(of.Parallel) > 0:
			return nil, badRequest("a parallel group is inside another one")
		case of.Signal:
			wait := saga.Signal[json.RawMessage, json.RawMessage](of.Name).Within(time.Duration(of.Within))
			if of.Else != nil {
				wait = wait.Else(of.Else)
			}
			all = append(all, wait)
		case of.Sleep > 0:
			all = append(all, saga.Sleep[json.RawMessage](of.Name, time.Duration(of.Sleep)))
		default:
			all = append(all, of.action(plain, undone))
		}
	}
	return all, nil
}

func (of orderStep) action(plain, undone action) action {
	a := plain
	if of.Undo != "" {
		a = undone
	}
	a = a.Named(of.Name).Timeout(time.Duration(of.Timeout)).Target(host(of.Do))
	if of.Pivot {
		a = a.Pivot()
	}
	if of.Uncompensable {
		a = a.Uncompensable()
	}
	if r := of.Retry; r != nil {
		a = a.Retry(saga.Policy{First: time.Duration(r.First), Max: time.Duration(r.Max), Attempts: r.Attempts, Undos: r.Undos})
	}
	return a
}

func (s *Service) permittedSteps(steps []orderStep) error {
	for _, of := range steps {
		for _, address := range []string{of.Do, of.Undo} {
			if address == "" {
				continue
			}
			if err := s.permitted(address); err != nil {
				return err
			}
		}
		if err := errors.Join(of.check(), s.checkPace(of)); err != nil {
			return err
		}
		if err := s.permittedSteps(of.Parallel); err != nil {
			return err
		}
	}
	return nil
}

// count returns the number of steps, including those in groups.
func count(steps []orderStep) int {
	n := len(steps)
	for _, of := range steps {
		n += len(of.Parallel)
	}
	return n
}

// checkPace rejects a step with too short a pause between retries.
func (s *Service) checkPace(of orderStep) error {
	if of.Retry == nil {
		return nil
	}
	for name, d := range map[string]duration{"first": of.Retry.First, "max": of.Retry.Max} {
		if d > 0 && time.Duration(d) < s.options.Pause {
			return badRequest("step %q has %q of %v in its retry: at least %v is required", of.Name, name, time.Duration(d), s.options.Pause)
		}
	}
	return nil
}

// check rejects a step with fields that would be ignored.
func (of orderStep) check() error {
	ways := 0
	for _, set := range []bool{of.Do != "", len(of.Parallel) > 0, of.Sleep > 0, of.Signal} {
		if set {
			ways++
		}
	}
	switch {
	case ways == 0:
		return badRequest("step %q has none of do, parallel, sleep and signal", of.Name)
	case ways > 1:
		return badRequest("step %q has more than one of do, parallel, sleep and signal", of.Name)
	case !of.Signal && (of.Within > 0 || of.Else != nil):
		return badRequest("step %q waits for no signal, and says for how long or what else", of.Name)
	case of.Do == "" && (of.Undo != "" || of.Pivot || of.Uncompensable || of.Input != nil || of.Timeout > 0 || of.Retry != nil):
		return badRequest("step %q has no address to do it, and says what only a step can that has one", of.Name)
	}
	return nil
}

// sagaView is the answer for a saga.
type sagaView struct {
	coordinator.Summary
	Outputs map[string]json.RawMessage `json:"outputs"`
	Crossed []saga.StepError           `json:"crossed,omitempty"`
}

// longestOrder leaves room in a journal's payload for the fields around the order.
const longestOrder = driver.MaxPayload - 1<<10

func (s *Service) startSaga(r *http.Request) (any, error) {
	o, wait, err := readWaiting[order](r)
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
	if o.Type != kind && o.Type != kindReported || json.Unmarshal(o.Input, &as) != nil {
		return o.Type
	}
	return cmp.Or(as.Type, o.Type)
}

// checkStart checks the options of a saga, and returns when it starts; zero means now.
func (s *Service) checkStart(o order) (at time.Time, err error) {
	if o.OnEnd != "" {
		if err := s.permitted(o.OnEnd); err != nil {
			return at, err
		}
	}
	if o.StartAt == "" {
		return at, nil
	}
	if at, err = time.Parse(time.RFC3339, o.StartAt); err != nil {
		return at, badRequest("startAt is %q: it must be a time such as 2026-01-02T15:04:05Z", o.StartAt)
	}
	return at, nil
}

// signalSaga sends a signal to a saga.
func (s *Service) signalSaga(r *http.Request) (any, error) {
	sent, _, err := readWaiting[struct {
		Value json.RawMessage `json:"value,omitempty"`
	}](r)
	if err != nil {
		return nil, err
	}
	if sent.Value == nil {
		sent.Value = json.RawMessage("null")
	}
	if err := s.sagas.Signal(r.Context(), r.PathValue("id"), r.PathValue("name"), sent.Value); err != nil {
		return nil, err
	}
	return showDone(s.showSaga(r))
}

// reportedTo returns the target of the report of an order.
func reportedTo(text json.RawMessage) string {
	var o order
	_ = json.Unmarshal(text, &o) // parsed before, for the stages
	return host(o.OnEnd)
}

// reportEnd posts the outcome of a saga to the address in its order.
func (s *Service) reportEnd(ctx context.Context, outcome saga.Outcome) error {
	var o order
	if err := json.Unmarshal(outcome.Input, &o); err != nil {
		return err
	}
	if err := s.permitted(o.OnEnd); err != nil {
		return err
	}
	text, err := json.Marshal(viewSaga(outcome))
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.OnEnd, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("report the end to %s: it is not a valid address", failure.RedactURL(o.OnEnd))
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(branchhttp.HeaderTransaction, url.PathEscape(outcome.ID))
	r.Header.Set(branchhttp.HeaderOperation, "ended")
	answer, err := httpclient.WithoutRedirects(s.options.Client).Do(r)
	if err != nil {
		return fmt.Errorf("report the end to %s: %w", failure.RedactURL(o.OnEnd), errors.Unwrap(err)) // a url.Error has the address, whose query may be secret
	}
	_ = answer.Body.Close() // only the status counts
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return &endError{failure.RedactURL(o.OnEnd), answer.StatusCode, httpclient.RetryAfter(answer.Header, time.Now())}
	}
	return nil
}

// endError is an answer to the report of an end that is not 2xx.
type endError struct {
	address string
	status  int
	after   time.Duration
}

func (e *endError) Error() string {
	return fmt.Sprintf("report the end to %s: answered %d", e.address, e.status)
}

// RetryAfter is when to report it again: see [branch.ClassOf].
func (e *endError) RetryAfter() time.Duration { return e.after }
