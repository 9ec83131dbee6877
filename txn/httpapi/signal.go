package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/saga"
)

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
