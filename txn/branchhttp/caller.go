package branchhttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
)

// maxReason is how much of an answer that is not 2xx an [AnswerError] keeps, in bytes.
const maxReason = 4 << 10

// maxPause bounds the Retry-After of a participant.
const maxPause = 24 * time.Hour

// An AnswerError is a participant's answer that is not 2xx. Its class is Fail for 409,
// InProgress for 425 and Unknown for every other status: a proxy that answers 503
// does not know the outcome of the request.
type AnswerError struct {
	Status int
	Body   string // the first 4 KiB of it

	after time.Duration
}

// Error returns the status and the body.
func (e *AnswerError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("answered %d %s: %s", e.Status, http.StatusText(e.Status), e.Body))
}

// RetryAfter returns the Retry-After of a 429 or a 503, at most a day; 0 means none. A coordinator
// calls again no earlier, up to its longest pause.
func (e *AnswerError) RetryAfter() time.Duration { return e.after }

// A Caller calls branches over HTTP. The zero value works, and so do copies.
type Caller struct {
	// Client sends the requests; nil means http.DefaultTransport. Redirects are never
	// followed, and its CheckRedirect is ignored.
	Client *http.Client
	// Unusable receives each 2xx whose output is not JSON or above [MaxBody], where the
	// call counts as done without an output; nil logs it with slog.Default, up to 20 in a second.
	Unusable func(c branch.Call, err error)
}

// Post calls a participant once and does not retry. The Client's transport must not retry
// either: the coordinator counts attempts. The earlier of c.Deadline and ctx's deadline is
// sent to the participant and ends the call. Input is sent as application/json and not
// checked; output is empty or JSON.
//
// An error has a class, and an [*interlock.Error] in its chain:
//
//   - Fail: the participant refused (409, an [*AnswerError]), or the call cannot be sent:
//     an invalid url or call, an input above [MaxInput] (Bug).
//   - Retry: no connection was made, so nothing was sent.
//   - InProgress: the participant is processing the call (425); call again after its
//     Retry-After, at least a second.
//   - Unknown: everything else, also a [branch.ErrOtherInput], a 2xx whose output was cut off,
//     and a 2xx to a try or a prepare whose output is above [MaxBody] or not JSON.
//
// Every other call is done once it is answered 2xx: repeating or undoing it would be
// wrong. If its output is unusable, the call has no output: see Unusable.
func (caller Caller) Post(ctx context.Context, url string, c branch.Call, input []byte) (output []byte, err error) {
	if at, ok := ctx.Deadline(); ok && (c.Deadline.IsZero() || at.Before(c.Deadline)) {
		c.Deadline = at
	}
	if !c.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, c.Deadline)
		defer cancel()
	}
	trace := new(connection)
	request, err := newRequest(trace.context(ctx), c, url, input)
	if err != nil {
		return nil, branch.Fail(problem(c, interlock.Bug, err))
	}
	if ctx.Err() != nil {
		return nil, branch.Retry(problem(c, interlock.Retryable, context.Cause(ctx)))
	}
	answer, err := httpclient.WithoutRedirects(caller.Client).Do(request)
	if err != nil {
		return nil, trace.classify(c, failure.RedactError(err))
	}
	defer answer.Body.Close()
	return caller.read(c, answer)
}

func newRequest(ctx context.Context, c branch.Call, address string, input []byte) (*http.Request, error) {
	if len(input) > MaxInput {
		return nil, fmt.Errorf("the input has %d bytes, at most %d are allowed: send less, or give the step an input of its own", len(input), MaxInput)
	}
	r, err := newPost(ctx, address, input)
	if err != nil {
		return nil, err
	}
	return r, SetHeaders(r.Header, c)
}

// newPost returns a request with JSON. It refuses addresses with a user.
func newPost(ctx context.Context, address string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, failure.RedactError(err)
	}
	if u := r.URL; u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%q is not the address of a participant", failure.RedactURL(address))
	}
	if r.URL.User != nil {
		return nil, fmt.Errorf("the address %q has a user or a password: remove them, and sign calls instead", failure.RedactURL(address))
	}
	r.Header.Set("Content-Type", "application/json")
	return r, nil
}

// A connection records the progress of a request. A transport without httptrace never sets
// requested.
type connection struct{ requested, connected atomic.Bool }

func (t *connection) context(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { t.requested.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { t.connected.Store(true) },
	})
}

// classify returns the error of a request without an answer. Nothing was sent only if
// there never was a connection: a second one may fail after the first has sent.
func (t *connection) classify(c branch.Call, err error) error {
	var dial *net.OpError
	var certificate *tls.CertificateVerificationError
	refused := errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &certificate)
	if !t.connected.Load() && (t.requested.Load() || refused) {
		return branch.Retry(problem(c, interlock.Retryable, err))
	}
	return branch.Unknown(problem(c, interlock.Uncertain, err))
}

// read returns the output of an answer, or its error.
func (caller Caller) read(c branch.Call, answer *http.Response) ([]byte, error) {
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return nil, refusal(c, answer)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, MaxBody+1))
	whole := err == nil
	switch {
	case !whole:
	case len(body) > MaxBody:
		err = fmt.Errorf("the output has more than %d bytes: answer less", MaxBody)
	case len(body) > 0 && !isJSON(body):
		err = errNotJSON
	default:
		return body, nil
	}
	err = problem(c, interlock.Uncertain, fmt.Errorf("answered %d: %w", answer.StatusCode, err))
	if !whole || c.Operation == branch.Try || c.Operation == branch.Prepare {
		return nil, branch.Unknown(err)
	}
	if caller.Unusable != nil {
		caller.Unusable(c, err)
	} else if suppressed, ok := unusable.Admit(); ok {
		slog.Warn("a participant's output cannot be used: the call counts as done without an output",
			"transaction", c.Transaction, "branch", c.Branch, "operation", c.Operation, "error", err, "suppressed", suppressed)
	}
	return nil, nil
}

// unusable limits the log of all callers.
var unusable observe.LogLimit

// answerError returns an answer that is not 2xx as an error.
func answerError(answer *http.Response) *AnswerError {
	var body []byte
	if answer.StatusCode != http.StatusSwitchingProtocols { // its body is the connection, which ignores the deadline
		body, _ = io.ReadAll(io.LimitReader(answer.Body, maxReason)) // a part suffices
	}
	err := &AnswerError{Status: answer.StatusCode, Body: string(body)}
	if err.Status == http.StatusTooManyRequests || err.Status == http.StatusServiceUnavailable {
		err.after = retryAfter(answer)
	}
	return err
}

func refusal(c branch.Call, answer *http.Response) error {
	err := answerError(answer)
	switch answer.StatusCode {
	case http.StatusConflict:
		return branch.Fail(problem(c, interlock.Definite, err))
	case http.StatusTooEarly:
		return fmt.Errorf("%w: %w", branch.InProgress(max(retryAfter(answer), time.Second)), problem(c, interlock.Retryable, err))
	}
	if answer.Header.Get(HeaderInput) == otherInput {
		return branch.Unknown(problem(c, interlock.Uncertain, fmt.Errorf("%w: %w", branch.ErrOtherInput, err)))
	}
	return branch.Unknown(problem(c, interlock.Uncertain, err))
}

func retryAfter(answer *http.Response) time.Duration {
	return min(httpclient.RetryAfter(answer.Header, time.Now()), maxPause)
}

func problem(c branch.Call, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "call branch", Driver: "http", Name: c.Key(), Kind: kind, Err: err}
}
