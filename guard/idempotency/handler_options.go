package idempotency

import (
	"net/http"
	"time"
)

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
	// [KeepStatus]. Other answers are sent but not stored. If the status is below 500, the key
	// is freed, as by [Request.Decline]. If it is 500 or more, the request stays unfinished.
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
	// sent; 0 means 8 MiB, or the store's MaxAnswer if that is larger. A longer body is never
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
	var h HandlerOptions
	if o != nil {
		h = *o
	}
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
// holds for 2xx, 3xx and 4xx, with these exceptions. Some depend on the client (401, 403, 407),
// some on the time (408, 425, 429), and some on the current state (409, 412, 421, 423).
func KeepStatus(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusMisdirectedRequest, http.StatusLocked:
		return false
	}
	return status >= 200 && status < 500
}

// SharedScope returns one scope for all clients. Use it if they may see each other's answers.
func SharedScope(*http.Request) string { return "" }
