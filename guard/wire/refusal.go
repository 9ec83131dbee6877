package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/interlock-dev/interlock"
)

// A Reason is the reason for a refusal, and the last part of the problem's type.
type Reason string

// The reasons, each with its own status; see the package comment.
const (
	Missing       Reason = "token-missing"
	Malformed     Reason = "token-malformed"
	Implausible   Reason = "token-implausible"
	Forged        Reason = "token-forged"
	Untimely      Reason = "token-untimely"
	WrongResource Reason = "wrong-resource"
	Stale         Reason = "token-stale"
	Over          Reason = "claim-over"
	Busy          Reason = "busy"
	Unknown       Reason = "outcome-unknown"
	// Reasons of package guard/proxy.
	Done    Reason = "call-done"
	InDoubt Reason = "call-in-doubt"
)

// answer is the meaning of a reason for both sides.
type answer struct {
	status int
	title  string
	kind   interlock.ErrorKind
	target error // nil if there is no sentinel for it
}

var answers = map[Reason]answer{
	Missing:       {http.StatusPreconditionRequired, "a fencing token is required", interlock.Bug, nil},
	Malformed:     {http.StatusBadRequest, "the fencing token cannot be read", interlock.Bug, nil},
	Implausible:   {http.StatusBadRequest, "no such fencing token can have been issued", interlock.Definite, interlock.ErrImplausibleToken},
	Forged:        {http.StatusUnauthorized, "the fencing token is not signed by a key that is accepted", interlock.Definite, nil},
	Untimely:      {http.StatusUnauthorized, "the fencing token's signature is not good at this time", interlock.Definite, nil},
	WrongResource: {http.StatusForbidden, "the fencing token is for something else", interlock.Definite, nil},
	Stale:         {http.StatusPreconditionFailed, "a higher fencing token has entered", interlock.Definite, interlock.ErrStaleToken},
	Over:          {http.StatusPreconditionFailed, "the claim ended before the work was done", interlock.Definite, interlock.ErrExpired},
	Busy:          {http.StatusServiceUnavailable, "nothing was done, the same request may work later", interlock.Retryable, nil},
	Done:          {http.StatusConflict, "the call was made before", interlock.Definite, nil},
	InDoubt:       {http.StatusConflict, "the call may have been made before, and is not made again", interlock.Uncertain, interlock.ErrUncertain},
	Unknown:       {http.StatusInternalServerError, "it is not known whether it was done", interlock.Uncertain, interlock.ErrUncertain},
}

// Reasons returns all reasons, in no order.
func Reasons() []Reason {
	all := make([]Reason, 0, len(answers))
	for r := range answers {
		all = append(all, r)
	}
	return all
}

// Status returns the HTTP status of a refusal for this reason; 500 for an unknown reason.
func (r Reason) Status() int {
	if a, ok := answers[r]; ok {
		return a.status
	}
	return http.StatusInternalServerError
}

// A Refusal is a refused request: the response of a service, and the error that its caller
// receives. Its kind is that of the reason. A [Stale] refusal is also an
// [*interlock.StaleTokenError].
type Refusal struct {
	Reason   Reason
	Resource string          // empty if it is not known
	Seen     interlock.Token // of Stale: the highest that has entered
	Got      interlock.Token // the refused token; 0 if it was not parsed
	Detail   string          // for people; may be empty
}

// Error returns the title of the reason, with the known details.
func (r *Refusal) Error() string {
	text := answers[r.Reason].title
	if text == "" {
		text = "refused: " + string(r.Reason)
	}
	if r.Resource != "" {
		text = fmt.Sprintf("request under claim %q: %s", r.Resource, text)
	}
	if r.Reason == Stale {
		text += fmt.Sprintf(": got %d, seen %d", r.Got, r.Seen)
	}
	if r.Detail != "" {
		text += ": " + brief(r.Detail, maxDetail)
	}
	return text
}

// ErrorKind returns what the caller may conclude; Uncertain for an unknown reason.
func (r *Refusal) ErrorKind() interlock.ErrorKind { return answers[r.Reason].kind }

// Unwrap returns the guard's error, or the sentinel of the reason.
func (r *Refusal) Unwrap() error {
	if r.Reason == Stale {
		return &interlock.StaleTokenError{Resource: r.Resource, Seen: r.Seen, Got: r.Got}
	}
	return answers[r.Reason].target
}

// RefusalOf returns the refusal with which a service answers a guard's error. ok is false for
// nil. It is also false for an error that is not about the claim and does not itself state the
// kind Retryable or Uncertain: the handler must answer that. The refusal does not contain
// internal details of the service.
//
// An error that itself states the kind Uncertain is [Unknown], whatever it wraps. So is the
// cause of a claim's end, unless the error itself states the kind Definite, as errors of guards
// do. A request of the handler that was in flight fails with that cause too.
func RefusalOf(err error) (refusal *Refusal, ok bool) {
	var r *Refusal
	var stale *interlock.StaleTokenError
	kind, stated := statedKind(err)
	switch {
	case err == nil:
		return nil, false
	case errors.As(err, &r) && (kind == r.ErrorKind() || kind != interlock.Uncertain):
		return r, true
	case errors.Is(err, interlock.ErrUncertain): // what has no kind is of the handler's own
		return &Refusal{Reason: Unknown, Resource: nameOf(err)}, true
	case errors.As(err, &stale):
		return &Refusal{Reason: Stale, Resource: stale.Resource, Seen: stale.Seen, Got: stale.Got}, true
	case errors.Is(err, interlock.ErrImplausibleToken):
		return &Refusal{Reason: Implausible, Resource: nameOf(err)}, true
	case stated && kind == interlock.Retryable:
		return &Refusal{Reason: Busy, Resource: nameOf(err)}, true
	case ended(err) && stated:
		return &Refusal{Reason: Over, Resource: nameOf(err)}, true
	case ended(err):
		return &Refusal{Reason: Unknown}, true
	}
	return nil, false
}

// statedKind returns the kind that err itself states.
func statedKind(err error) (kind interlock.ErrorKind, stated bool) {
	var k interface{ ErrorKind() interlock.ErrorKind }
	if stated = errors.As(err, &k); stated {
		kind = k.ErrorKind()
	}
	return kind, stated
}

// ended reports whether err means that the claim has ended.
func ended(err error) bool {
	for _, e := range []error{interlock.ErrExpired, interlock.ErrReleased, interlock.ErrLost, interlock.ErrSessionEnded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func nameOf(err error) string {
	if e, found := errors.AsType[*interlock.Error](err); found {
		return e.Name
	}
	return ""
}

// over returns the error for a claim that ended before anything was sent.
func over(c interlock.Claim, resource string) error {
	err := interlock.ErrExpired
	if c.Context().Err() != nil {
		err = context.Cause(c.Context())
	}
	return &interlock.Error{Op: "send request under claim", Name: resource, Kind: interlock.Definite, Err: err}
}

// ProblemType is the prefix of the type of every problem; a [Reason] follows.
const ProblemType = "urn:interlock:problem:"

// ProblemMedia is the media type of a problem, of RFC 9457.
const ProblemMedia = "application/problem+json"

const (
	maxProblem = 16 << 10 // maximum bytes read of a refusal's body
	maxDetail  = 1 << 10  // maximum bytes sent of the detail, so that the escaped problem fits
)

// problem is the body of a refusal. Tokens are texts, because many JSON parsers round integers
// above 2^53.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Resource string `json:"resource,omitempty"`
	Seen     string `json:"seen,omitempty"`
	Got      string `json:"got,omitempty"`
}

// MarshalJSON encodes a refusal as a problem of RFC 9457.
func (r *Refusal) MarshalJSON() ([]byte, error) {
	return json.Marshal(problem{Type: ProblemType + string(r.Reason), Title: answers[r.Reason].title, Status: r.Reason.Status(),
		Detail: brief(r.Detail, maxDetail), Resource: r.Resource, Seen: text(r.Seen), Got: text(r.Got)})
}

// UnmarshalJSON decodes the result of MarshalJSON; for a problem of another type it returns an
// error.
func (r *Refusal) UnmarshalJSON(data []byte) error {
	var p problem
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	reason, ours := strings.CutPrefix(p.Type, ProblemType)
	if _, known := answers[Reason(reason)]; !ours || !known {
		return fmt.Errorf("%q is not a problem with a fencing token", p.Type)
	}
	*r = Refusal{Reason: Reason(reason), Resource: p.Resource, Detail: p.Detail}
	// An invalid number is ignored: it is for people.
	r.Seen, _ = interlock.ParseToken(p.Seen)
	r.Got, _ = interlock.ParseToken(p.Got)
	return nil
}

func text(t interlock.Token) string {
	if t == 0 {
		return ""
	}
	return t.String()
}

// ServeHTTP answers any request with the refusal.
func (r *Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(r)
	if err != nil { // no field can cause an error
		http.Error(w, "refused", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} { // of the answer that it replaces
		h.Del(name)
	}
	h.Set("Content-Type", ProblemMedia)
	h.Set("Cache-Control", "no-store")
	switch r.Reason.Status() {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", fmt.Sprintf("Interlock error=%q", string(r.Reason)))
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(r.Reason.Status())
	_, _ = w.Write(body) // the client may be gone
}

// Refuse answers with the refusal for a guard's error, and reports whether it did. If err is
// nil or not about the claim, it does nothing and returns false: see [RefusalOf]. The caller
// must not have written to w before.
func Refuse(w http.ResponseWriter, err error) (refused bool) {
	r, ok := RefusalOf(err)
	if ok {
		r.ServeHTTP(w, nil)
	}
	return ok
}

// Check returns the [*Refusal] in a response, whose body it has then read, or nil. After nil
// the body is unchanged, and the status may still be an error of the handler or of a proxy. The
// caller must close the body.
func Check(resp *http.Response) error {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != ProblemMedia || resp.StatusCode < 400 {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	var r Refusal
	if err != nil || r.UnmarshalJSON(body) != nil || r.Reason.Status() != resp.StatusCode {
		resp.Body = &rest{io.MultiReader(strings.NewReader(string(body)), resp.Body), resp.Body}
		return nil
	}
	return &r
}

// rest is a partly read body, with the read part in front again.
type rest struct {
	io.Reader
	io.Closer
}
