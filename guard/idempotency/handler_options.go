package idempotency

import (
	"net/http"
	"time"
)

// HandlerOptions of [Handler]; nil and the zero value work.
type HandlerOptions struct {
	// Methods are those whose requests need a key; empty means POST and PATCH.
	// Others pass.
	Methods []string
	// Optional lets requests without a key pass, which then may take effect twice;
	// otherwise they are answered 400.
	Optional bool
	// Operation names what a request asks for; nil means its method and the pattern
	// of http.ServeMux that it matched, or its path if the mux stands behind.
	Operation func(*http.Request) string
	// Headers are the request's headers that are part of its fingerprint, beside
	// method, path, query and body; nil means Content-Type.
	Headers []string
	// Keep tells by its status whether an answer is kept and replayed; nil means
	// [KeepStatus]. An answer that is not kept is shown all the same: one below 500
	// frees the key, as [Request.Decline] does; one of 500 or more leaves the
	// request unfinished.
	Keep func(status int) bool
	// Replay are the headers of an answer that are kept and replayed; nil means
	// [ReplayHeaders]. Name none that is of one client, such as Set-Cookie.
	Replay []string
	// Wait is for how long a request waits for the answer of another one that is in
	// flight; 0 answers 409 at once.
	Wait time.Duration
	// RetryAfter is the longest Retry-After that a client gets; 0 means a
	// second. It is sent in whole seconds, one at least.
	RetryAfter time.Duration
	// MaxRequest is the longest body of a request in bytes; 0 means 1 MiB. One that
	// is longer is answered 413.
	MaxRequest int64
	// MaxResponse is the longest body of an answer, in bytes, that is held in memory
	// and shown; 0 means 8 MiB, or the store's MaxAnswer if that is more. A longer
	// one is shown to nobody: the request has had its effect, and all who ask are
	// answered 409, answer-not-kept. If it is not one to be kept, the request is left
	// unfinished, and answered 500.
	MaxResponse int
	// KeepBody keeps the request's body as [Request.Input], for a [Completer].
	KeepBody bool
	// Docs is the address of a page about the problems that clients get, whose
	// anchors are their reasons; empty is none.
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

// ReplayHeaders are the headers of answers that are kept unless options say
// otherwise.
var ReplayHeaders = []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language",
	"Content-Location", "Content-Type", "Etag", "Expires", "Last-Modified", "Link", "Location", "Vary"}

// KeepStatus tells whether an answer depends on the request alone: 2xx, 3xx and 4xx
// do, but for those that say who asks (401, 403, 407), when (408, 425, 429), or what
// is in the way now (409, 412, 421, 423).
func KeepStatus(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusMisdirectedRequest, http.StatusLocked:
		return false
	}
	return status >= 200 && status < 500
}

// SharedScope is the scope of a service whose clients may see each other's answers.
func SharedScope(*http.Request) string { return "" }
