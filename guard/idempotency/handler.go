package idempotency

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Handler makes each request to next with an Idempotency-Key take effect once. It sends the
// same answer to retries, with the header Idempotency-Replayed. scope returns the caller of a
// request. A client that shares a scope and knows a key can read the answer. So derive the
// scope from the authenticated identity, not from request data.
//
// next finds its attempt by [From] in the request's context, for [Phase], [LastPhase] and
// [Step]. Its answer is sent to the client as a whole, once it is durable: see [ErrStreaming].
// Trailers are not sent. After a panic the request is unfinished, and the panic continues. It is also
// unfinished if next answers nothing and its context has ended.
//
// If there is no answer, the client receives a problem as in RFC 9457:
//
//   - 400: the key is missing or malformed
//   - 409: the request is in flight
//   - 413: the request is too large
//   - 422: the key was used for another request
//   - 503: the store is unreachable
func Handler(s *Store, scope func(*http.Request) string, next http.Handler, o *HandlerOptions) http.Handler {
	return &handler{store: s, scope: scope, next: next, HandlerOptions: o.orDefault(s)}
}

type handler struct {
	store *Store
	scope func(*http.Request) string
	next  http.Handler
	HandlerOptions
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.Methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	key, err := ParseKey(r.Header.Values(keyHeader))
	switch {
	case err != nil:
		h.refuse(w, problem{Title: "The " + keyHeader + " is malformed", Status: http.StatusBadRequest, Reason: "key-malformed", Detail: err.Error()})
	case key == "" && h.Optional:
		h.next.ServeHTTP(w, r)
	case key == "":
		h.refuse(w, problem{Title: "An " + keyHeader + " is required", Status: http.StatusBadRequest, Reason: "key-missing",
			Detail: "Choose one that is new, and send it again with each retry."})
	default:
		h.serve(w, r, key)
	}
}

func (h *handler) refuse(w http.ResponseWriter, p problem) { p.write(w, h.Docs) }

func (h *handler) serve(w http.ResponseWriter, r *http.Request, key string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.MaxRequest))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		h.refuse(w, problem{Title: "The request is too large", Status: http.StatusRequestEntityTooLarge, Reason: "request-too-large"})
		return
	case err != nil:
		h.refuse(w, problem{Title: "The request's body cannot be read", Status: http.StatusBadRequest, Reason: "request-unreadable"})
		return
	}
	out := &buffer{header: http.Header{}, most: h.MaxResponse}
	response, err := h.store.Do(r.Context(), h.call(r, key, body), h.carryOut(out, r, body))
	if errors.Is(err, errUnfinished) {
		response, err = out.response(), nil
	}
	h.respond(w, key, response, err)
}

// respond writes the outcome of a request.
func (h *handler) respond(w http.ResponseWriter, key string, response Response, err error) {
	switch {
	case errors.Is(err, errTooLarge):
		h.refuse(w, problem{Title: "The answer is too large", Status: http.StatusInternalServerError, Reason: "answer-too-large"})
	case err != nil:
		h.refuse(w, problemOf(err, h.RetryAfter))
	case response.digest != "":
		h.refuse(w, problemOf(&NotKeptError{Key: key, Status: response.Status, Digest: response.digest}, 0))
	case response.Status != 0 && (response.Status < 200 || response.Status > 999): // of a LastPhase
		h.refuse(w, problem{Title: "The answer has no status of HTTP", Status: http.StatusInternalServerError, Reason: "bug"})
	case response.Replayed:
		w.Header().Set("Idempotency-Replayed", "true")
		response.send(w)
	default:
		response.send(w)
	}
}

// call returns the Call of an HTTP request.
func (h *handler) call(r *http.Request, key string, body []byte) Call {
	parts := [][]byte{[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery)}
	for _, name := range h.Headers {
		values := r.Header.Values(name)
		if textproto.CanonicalMIMEHeaderKey(name) == "Host" { // which net/http keeps apart
			values = []string{r.Host}
		}
		parts = append(parts, []byte(strings.Join(values, ", ")))
	}
	c := Call{Scope: h.scope(r), Operation: h.Operation(r), Key: key, Fingerprint: Fingerprint(append(parts, body)...), Wait: h.Wait}
	if h.KeepBody {
		c.Input = body
	}
	return c
}

// operation returns the method and the pattern, or else the path. A long path is replaced by
// its hash.
func operation(r *http.Request) string {
	if r.Pattern != "" && strings.Contains(r.Pattern, " ") {
		return r.Pattern
	}
	what := r.Pattern
	what = cmp.Or(what, r.URL.EscapedPath())
	if len(r.Method)+len(what) >= driver.MaxIdempotencyName {
		what = "sha256:" + Fingerprint([]byte(what))
	}
	return r.Method + " " + what
}

// Errors that leave a request unfinished: the handler answered 500 or more, or with an answer
// that can be neither stored nor sent.
var (
	errUnfinished = errors.New("the handler has failed")
	errTooLarge   = errors.New("the answer is too large")
)

// carryOut returns a Func that runs the handler into out.
func (h *handler) carryOut(out *buffer, r *http.Request, body []byte) Func {
	return func(ctx context.Context) (Response, error) {
		attempt := From(ctx)
		attempt.allow = h.allowed
		again := r.WithContext(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		defer removeUploads(again)
		h.next.ServeHTTP(out, again)
		silent := out.status == 0 && ctx.Err() != nil && !attempt.declined.Load()
		response := out.response()
		kept := h.Keep(response.Status) && !refusesToken(response)
		switch {
		case attempt.answered(ctx): // the answer of LastPhase takes precedence
		case silent: // it stopped when its context ended, which is not a 200
			return response, &interlock.Error{Op: "execute request", Name: attempt.Key(), Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		case response.digest != "" && (!kept || attempt.declined.Load()):
			return response, errTooLarge
		case kept:
		case response.Status >= http.StatusInternalServerError:
			return response, errUnfinished
		default:
			attempt.Decline()
		}
		return response, nil
	}
}

// refusesToken reports whether an answer is a problem of package guard/wire with a fencing token, which is
// not part of the fingerprint.
func refusesToken(r Response) bool {
	var p problem
	return r.Header.Get("Content-Type") == problemMedia && json.Unmarshal(r.Body, &p) == nil && strings.HasPrefix(p.Type, "urn:interlock:problem:token-")
}

// removeUploads removes the files of a form. net/http does that only for its own request, which
// is another one.
func removeUploads(r *http.Request) {
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll()
	}
}

// allowed returns the headers to store.
func (h *handler) allowed(header http.Header) http.Header {
	kept := maps.Clone(header)
	maps.DeleteFunc(kept, func(name string, _ []string) bool {
		return !slices.ContainsFunc(h.Replay, func(allowed string) bool {
			return textproto.CanonicalMIMEHeaderKey(allowed) == textproto.CanonicalMIMEHeaderKey(name)
		})
	})
	return kept
}

// HandlerOptions configure [Handler]; nil and the zero value are valid.
type HandlerOptions struct {
	// Methods are the methods that need a key; empty means POST and PATCH. Requests with other
	// methods are passed to next.
	Methods []string
	// Optional passes requests without a key to next; they may take effect twice. Otherwise
	// they are answered with 400.
	Optional bool
	// Operation returns the operation of a request. Nil means the method and the matched
	// pattern of http.ServeMux, or the path if the mux is behind the Handler.
	Operation func(*http.Request) string
	// Headers are the request headers that are part of the fingerprint, in addition to method,
	// path, query and body; nil means Content-Type.
	Headers []string
	// Keep reports whether an answer with a status is stored and replayed; nil means
	// [KeepStatus]. Other answers are sent but not stored, nor is a refusal of a fencing token by
	// package guard/wire. If the status is below 500, the key is freed, as by [Request.Decline].
	// If it is 500 or more, the request stays unfinished.
	Keep func(status int) bool
	// Replay are the answer headers that are stored and replayed; nil means [ReplayHeaders]. Do
	// not list headers for one client only, such as Set-Cookie.
	Replay []string
	// Wait is how long a request waits for the answer of another one that is in flight; 0
	// answers 409 at once.
	Wait time.Duration
	// RetryAfter is the longest Retry-After that is sent; 0 means a second. It is sent in whole
	// seconds, at least one.
	RetryAfter time.Duration
	// MaxRequest is the maximum length of a request body in bytes; 0 means 1 MiB. A longer one
	// is answered with 413.
	MaxRequest int64
	// MaxResponse is the maximum length of an answer body, in bytes, that is held in memory and
	// sent. 0 means 8 MiB, or the store's MaxAnswer if that is larger. A longer body is never
	// sent: the request has had its effect, and it and its retries are answered with 409,
	// answer-not-kept. If the answer is not to be stored, the request stays unfinished and is
	// answered with 500.
	MaxResponse int
	// KeepBody stores the request's body as [Request.Input], for a [Completer].
	KeepBody bool
	// Docs is the URL of a page about the problems that clients receive; its anchors are their
	// reasons. Empty means none.
	Docs string
}

func (o *HandlerOptions) orDefault(s *Store) HandlerOptions {
	h := *cmp.Or(o, &HandlerOptions{})
	if len(h.Methods) == 0 {
		h.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if h.Operation == nil {
		h.Operation = operation
	}
	if h.Headers == nil {
		h.Headers = []string{"Content-Type"}
	}
	if h.Keep == nil {
		h.Keep = KeepStatus
	}
	if h.Replay == nil {
		h.Replay = ReplayHeaders
	}
	or(&h.RetryAfter, time.Second)
	or(&h.MaxRequest, 1<<20)
	or(&h.MaxResponse, max(8<<20, s.options.MaxAnswer))
	if h.KeepBody {
		h.MaxRequest = min(h.MaxRequest, MaxInput)
	}
	return h
}

// ReplayHeaders is the default of HandlerOptions.Replay.
var ReplayHeaders = []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language",
	"Content-Location", "Content-Type", "Etag", "Expires", "Last-Modified", "Link", "Location", "Vary"}

// KeepStatus reports whether an answer with this status depends on the request alone. This
// holds for 2xx, 3xx and 4xx, with these exceptions. Some depend on the client (401, 403, 407, 499),
// some on the time (408, 425, 429), and some on the current state (409, 412, 421, 423). 428 asks for
// the same request with another header.
func KeepStatus(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusMisdirectedRequest, http.StatusLocked,
		http.StatusPreconditionRequired,
		499: // of nginx: the client has disconnected
		return false
	}
	return status >= 200 && status < 500
}

// SharedScope returns one scope for all clients. Use it if they may see each other's answers.
func SharedScope(*http.Request) string { return "" }

// A Response is the answer to a request and to its retries.
type Response struct {
	Status int         // of HTTP, or defined by the caller
	Header http.Header // may be nil
	Body   []byte
	digest string // set if the body was too long; then Body is empty
	// Replayed reports that this is the stored answer, and that nothing was executed.
	Replayed bool
}

// keep returns the response in its stored form. If the body has more than most bytes, only its
// digest is stored.
func (r Response) keep(most int) *driver.IdempotencyAnswer {
	a := &driver.IdempotencyAnswer{Status: r.Status, Body: r.Body, Digest: r.digest}
	var header bytes.Buffer
	_ = r.Header.Write(&header) // a buffer takes everything
	a.Header = header.Bytes()
	if len(r.Body) > most {
		sum := sha256.Sum256(r.Body)
		a.Body, a.Digest = nil, hex.EncodeToString(sum[:])
	}
	return a
}

// replay returns the stored response. Header values are not validated: they were already sent
// once.
func replay(key string, a driver.IdempotencyAnswer) (Response, error) {
	if a.Digest != "" {
		return Response{}, &NotKeptError{Key: key, Status: a.Status, Digest: a.Digest}
	}
	header := http.Header{}
	for line := range strings.Lines(string(a.Header)) {
		name, value, found := strings.Cut(strings.TrimSuffix(line, "\r\n"), ": ")
		if !found {
			return Response{}, &interlock.Error{Op: "replay answer", Name: key, Kind: interlock.Definite,
				Err: fmt.Errorf("the record is damaged: it has a header of %q", line)}
		}
		header.Add(name, value)
	}
	return Response{Status: a.Status, Header: header, Body: a.Body, Replayed: true}, nil
}

// ErrStreaming is returned if a handler behind [Handler] flushes or hijacks the connection. An
// answer is sent as a whole, once it is durable. It wraps http.ErrNotSupported.
var ErrStreaming = fmt.Errorf("idempotency: an answer that is to be replayed cannot be streamed: %w", http.ErrNotSupported)

// buffer collects the answer of a handler. If the answer is too large, the handler still runs
// to its end, because its other effects happen only once.
type buffer struct {
	header http.Header // the handler's header map
	sent   http.Header // a copy from when the status was written
	status int         // 0 until then
	most   int         // maximum size of the body in bytes
	body   bytes.Buffer
	digest hash.Hash // set if the body is larger; then body is empty
}

func (b *buffer) Header() http.Header { return b.header }

// WriteHeader stores the first status from 200 on. Informational statuses are ignored.
func (b *buffer) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http has it
	}
	if b.status == 0 && status >= 200 {
		b.status, b.sent = status, b.header.Clone()
	}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	if b.status == http.StatusNoContent || b.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if b.digest == nil && len(p) > b.most-b.body.Len() {
		b.digest = sha256.New()
		b.digest.Write(b.body.Bytes())
		b.body = bytes.Buffer{}
	}
	if b.digest != nil {
		return b.digest.Write(p)
	}
	return b.body.Write(p)
}

// FlushError returns ErrStreaming to an http.ResponseController.
func (b *buffer) FlushError() error { return ErrStreaming }

// Hijack returns ErrStreaming to an http.ResponseController and to users of http.Hijacker.
func (b *buffer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrStreaming }

// response returns the answer after the handler has returned.
func (b *buffer) response() Response {
	b.WriteHeader(http.StatusOK)
	r := Response{Status: b.status, Header: b.sent, Body: b.body.Bytes()}
	if b.digest != nil {
		r.digest = hex.EncodeToString(b.digest.Sum(nil))
	}
	return r
}

// send writes an answer to a client.
func (r Response) send(w http.ResponseWriter) {
	for name, values := range r.Header {
		if name != "Trailer" && !strings.HasPrefix(name, http.TrailerPrefix) { // a replay has none
			w.Header()[name] = values
		}
	}
	w.WriteHeader(cmp.Or(r.Status, http.StatusOK))
	_, _ = w.Write(r.Body) // a disconnected client retries
}
