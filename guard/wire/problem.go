package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/interlock-dev/interlock"
)

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
	// A number that is none is left out: it is for people.
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
	if err != nil { // no value of it can be the reason
		http.Error(w, "refused", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Del("Content-Length")
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

// rest is a body of which a part was read, with that part in front again.
type rest struct {
	io.Reader
	io.Closer
}
