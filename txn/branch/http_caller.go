package branch

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// maxReason is how much of an answer that is not 2xx an [AnswerError] keeps, in bytes.
const maxReason = 4 << 10

// longestPause bounds the Retry-After of a participant.
const longestPause = 24 * time.Hour

// An AnswerError is a participant's answer that is not 2xx. Its class is Fail for 409,
// Ongoing for 425 and Unknown for every other status, whoever gave it: a proxy that
// answers 503 does not know what became of the request.
type AnswerError struct {
	Status int
	Body   string // the first 4 KiB of it
}

// Error shows the status and the body.
func (e *AnswerError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("answered %d %s: %s", e.Status, http.StatusText(e.Status), e.Body))
}

// A Caller calls branches over HTTP. The zero value works, and so do copies.
type Caller struct {
	// Client sends the requests; nil means http.DefaultTransport. What it says of
	// redirects does not count: a participant that has moved is not followed.
	Client *http.Client
	// Unusable receives each 2xx whose output is not JSON or above [MaxBody], where the
	// call counts as done without an output; nil logs it with slog.Default.
	Unusable func(c Call, err error)
}

// Post calls a participant once, and retries nothing: a Client whose transport does
// hides calls from the coordinator. c.Deadline, or ctx's own deadline if that is
// earlier, is what the participant is told, and ends the call. Input is sent as
// application/json, whatever it is; output is empty or JSON.
//
// An error has a class, and an [*interlock.Error] in its chain:
//
//   - Fail: the participant has refused (409, an [*AnswerError]), or what was to be
//     sent cannot be: a bad url or call, an input above [MaxInput] (Bug).
//   - Retry: no connection was made, so nothing was sent.
//   - Ongoing: it works on it (425), to be asked again after its Retry-After, which is
//     given in seconds; 0 if it does not say.
//   - Unknown: everything else, also an [ErrOtherInput], a 2xx whose output was cut off, and one to a try
//     or a prepare whose output is above [MaxBody] or not JSON.
//
// Every other call is done once it is answered 2xx, because to repeat it or to undo it
// would not be right. If its output cannot be used, it has none: see Unusable.
func (caller Caller) Post(ctx context.Context, url string, c Call, input []byte) (output []byte, err error) {
	if at, ok := ctx.Deadline(); ok && (c.Deadline.IsZero() || at.Before(c.Deadline)) {
		c.Deadline = at
	}
	if !c.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, c.Deadline)
		defer cancel()
	}
	request, err := newRequest(c, url, input)
	if err != nil {
		return nil, Fail(problem(c, interlock.Bug, err))
	}
	if ctx.Err() != nil {
		return nil, Retry(problem(c, interlock.Retryable, context.Cause(ctx)))
	}
	way := new(passage)
	answer, err := caller.client().Do(request.WithContext(way.traced(ctx)))
	if err != nil {
		return nil, way.unanswered(c, failure.RedactError(err))
	}
	defer answer.Body.Close()
	return caller.read(c, answer)
}

// client is the caller's own, but for redirects.
func (caller Caller) client() *http.Client {
	client := http.Client{}
	if caller.Client != nil {
		client = *caller.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

func newRequest(c Call, address string, input []byte) (*http.Request, error) {
	if len(input) > MaxInput {
		return nil, fmt.Errorf("the input has %d bytes, at most %d are allowed: send less, or give the step an input of its own", len(input), MaxInput)
	}
	r, err := newPost(address, input)
	if err != nil {
		return nil, err
	}
	return r, c.SetHeaders(r.Header)
}

// newPost is a request with JSON to an address without a user.
func newPost(address string, body []byte) (*http.Request, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, failure.RedactError(err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%q is not the address of a participant", failure.RedactURL(address))
	}
	if u.User != nil {
		return nil, fmt.Errorf("the address %q has a user or a password: take them out, and have calls signed instead", failure.RedactURL(address))
	}
	r, err := http.NewRequest(http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, failure.RedactError(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r, nil
}

// A passage is what is known of a request's way. Transports that do not tell have
// asked for no connection.
type passage struct{ asked, connected atomic.Bool }

func (p *passage) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { p.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { p.connected.Store(true) },
	})
}

// unanswered classifies a request that has no answer. Nothing was sent if no
// connection was ever had: a second one may have failed after the first had sent.
func (p *passage) unanswered(c Call, err error) error {
	var dial *net.OpError
	var certificate *tls.CertificateVerificationError
	refused := errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &certificate)
	if !p.connected.Load() && (p.asked.Load() || refused) {
		return Retry(problem(c, interlock.Retryable, err))
	}
	return Unknown(problem(c, interlock.Uncertain, err))
}

// read is what an answer says.
func (caller Caller) read(c Call, answer *http.Response) ([]byte, error) {
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return nil, refusal(c, answer)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, MaxBody+1))
	whole := err == nil
	switch {
	case !whole:
	case len(body) > MaxBody:
		err = fmt.Errorf("the output has more than %d bytes: answer less", MaxBody)
	case len(body) > 0 && !json.Valid(body):
		err = errNotJSON
	default:
		return body, nil
	}
	err = problem(c, interlock.Uncertain, fmt.Errorf("answered %d: %w", answer.StatusCode, err))
	if !whole || c.Operation == Try || c.Operation == Prepare {
		return nil, Unknown(err)
	}
	if caller.Unusable != nil {
		caller.Unusable(c, err)
	} else {
		slog.Warn("a participant's output cannot be used: the call counts as done without an output", "transaction", c.Transaction, "branch", c.Branch, "operation", c.Operation, "error", err)
	}
	return nil, nil
}

// answerError is an answer that is not 2xx.
func answerError(answer *http.Response) *AnswerError {
	var body []byte
	if answer.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection, and heeds no deadline
		body, _ = io.ReadAll(io.LimitReader(answer.Body, maxReason)) // what was read is enough, also if the rest is lost
	}
	return &AnswerError{answer.StatusCode, string(body)}
}

func refusal(c Call, answer *http.Response) error {
	err := answerError(answer)
	switch answer.StatusCode {
	case http.StatusConflict:
		return Fail(problem(c, interlock.Definite, err))
	case http.StatusTooEarly:
		return classify(ClassOngoing, pause(answer.Header.Get("Retry-After")), problem(c, interlock.Retryable, err))
	}
	if answer.Header.Get(HeaderInput) == otherInput {
		return Unknown(problem(c, interlock.Uncertain, fmt.Errorf("%w: %w", ErrOtherInput, err)))
	}
	return Unknown(problem(c, interlock.Uncertain, err))
}

// pause reads whole seconds; anything else is 0.
func pause(retryAfter string) time.Duration {
	seconds, err := strconv.ParseUint(retryAfter, 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, longestPause)
}

func problem(c Call, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "call branch", Driver: "http", Name: c.Key(), Kind: kind, Err: err}
}
