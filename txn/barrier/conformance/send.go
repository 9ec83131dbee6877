package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// Input is the body of every message.
type Input struct {
	Account  string `json:"account"`
	Amount   int64  `json:"amount"`
	Capacity int64  `json:"capacity"`
}

// A reply is a participant's answer to a message.
type reply struct {
	status int
	result any    // of a 2xx, decoded from JSON; nil if it is empty
	text   string // of another, and of a 2xx that is not JSON
}

func (r reply) matches(a answer) bool {
	switch {
	case r.status >= 200 && r.status <= 299:
		return a == ok && r.text == ""
	case r.status == http.StatusTooEarly:
		return false
	}
	conflict := r.status == http.StatusConflict
	return a == not || a == no && conflict || a == unheard && !conflict
}

// String returns the answer as a [Failure] shows it.
func (r reply) String() string {
	switch {
	case r.matches(ok):
		return string(ok)
	case r.matches(no):
		return string(no)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %.100s", r.status, http.StatusText(r.status), r.text))
}

// unfinished reports whether to send the same message again. A 5xx is judged if no other
// message is concurrent.
func (r reply) unfinished(racing bool) bool {
	return r.status == http.StatusTooEarly || racing && r.status >= 500
}

// send sends a message until it has an answer to judge.
func (s *stage) send(ctx context.Context, m message, racing bool) (reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.Patience, errors.New("the participant did not answer"))
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	var last reply
	for attempt := 1; ; attempt++ {
		r, err := s.post(ctx, m, attempt)
		switch {
		case err != nil && attempt > 1 && ctx.Err() != nil:
			return last, nil
		case err != nil || !r.unfinished(racing):
			return r, err
		}
		last = r
		pause.Reset(time.Duration(min(attempt, 25)) * 20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return r, nil // judged by this answer
		}
	}
}

// post sends a message once.
func (s *stage) post(ctx context.Context, m message, attempt int) (reply, error) {
	amount := int64(1)
	if m.as == otherInput {
		amount = 2
	}
	body, err := json.Marshal(Input{Account: s.transaction, Amount: amount, Capacity: s.capacity})
	if err != nil {
		return reply{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, strings.NewReader(string(body)))
	if err != nil {
		return reply{}, bug(err)
	}
	if err := branchhttp.SetHeaders(request.Header, s.call(m, attempt)); err != nil {
		return reply{}, bug(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if m.as == headless {
		request.Header.Del(branchhttp.HeaderBranch)
	}
	s.sent.Add(1)
	status, text, err := s.exchange(request)
	r := reply{status: status, text: string(text)}
	if err == nil && status >= 200 && status <= 299 && (len(text) == 0 || json.Unmarshal(text, &r.result) == nil) {
		r.text = ""
	}
	return r, err
}

// defaultBranch is the branch of the zero key. A participant must percent-decode it.
const defaultBranch = "seats / é%2F"

func (s *stage) call(m message, attempt int) branch.Call {
	c := branch.Call{Transaction: s.transaction, Branch: m.to.branch, Step: m.to.step, Operation: operations[s.protocol][m.kind],
		Attempt: attempt, Epoch: 1 << 12, Begun: s.begun, Deadline: s.options.now().Add(s.options.Patience)}
	if c.Branch == "" {
		c.Branch = defaultBranch
	}
	if c.Operation == branch.Try {
		c.Until = s.begun.Add(time.Hour)
	}
	if m.as == late {
		c.Deadline = s.begun.Add(-time.Hour)
	}
	return c
}

// inspect reads the account's effects.
func (s *stage) inspect(ctx context.Context) (e Effects, err error) {
	u, err := url.Parse(s.options.Inspect)
	if err != nil {
		return e, bug(err)
	}
	asked := u.Query()
	asked.Set("account", s.transaction)
	u.RawQuery = asked.Encode()
	ctx, cancel := context.WithTimeout(ctx, s.options.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return e, bug(err)
	}
	status, text, err := s.exchange(request)
	if err == nil && (status != http.StatusOK || json.Unmarshal(text, &e) != nil) {
		err = &interlock.Error{Op: "inspect account", Name: s.transaction, Kind: interlock.Definite,
			Err: fmt.Errorf("answered %d %.100s, and not what it has", status, text)}
	}
	return e, err
}

// exchange sends a request and reads the answer.
func (s *stage) exchange(request *http.Request) (status int, body []byte, err error) {
	response, err := httpclient.WithoutRedirects(s.options.Client).Do(request)
	if err == nil {
		defer response.Body.Close()
		status = response.StatusCode
	}
	if err == nil && status != http.StatusSwitchingProtocols { // whose body is the connection, and ignores deadlines
		body, err = io.ReadAll(io.LimitReader(response.Body, branchhttp.MaxBody))
	}
	if err != nil {
		err = &interlock.Error{Op: "reach participant", Name: request.URL.Host, Kind: interlock.Uncertain, Err: failure.RedactError(err)}
	}
	return status, body, err
}
