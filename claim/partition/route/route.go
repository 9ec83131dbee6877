// Package route sends an HTTP request to the member of a group that owns its key. It does not
// deduplicate requests and does not guard data: the handler does that, with the claim in its
// context.
//
//	http.Handle("/orders/", route.Handler(g, orderID, ship, nil))
//
//	func ship(w http.ResponseWriter, r *http.Request) {
//		c, _ := route.Claim(r.Context())
//		err := fence.Tx(r.Context(), db, marks, c, id, …)
//	}
//
// A member that does not own the key of a request forwards the request to the owner, together
// with the epoch of the route. If the receiver does not own the key under exactly that epoch,
// it refuses with 421 Misdirected Request before it does anything. The forwarder then looks up
// the owner again and retries. So a stale route costs a round trip, but the request never runs
// at the wrong member.
package route

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/observe"
)

// EpochHeader carries the epoch by which a request was routed, in a refusal the epoch that the
// refusing member knows, and in an answer of [Receive] the epoch of its claim.
const EpochHeader = "Interlock-Epoch"

// A Key returns the key of a request. If it returns an error, the response is 400.
type Key func(*http.Request) (string, error)

// Defaults of [Options].
const (
	DefaultAttempts = 5
	DefaultWait     = 5 * time.Second
	DefaultMaxBody  = 1 << 20
)

// Options configure a router; nil and the zero value are valid.
type Options struct {
	// Transport sends forwarded requests; nil means http.DefaultTransport.
	Transport http.RoundTripper
	// Scheme is the scheme of the members' addresses; empty means http.
	Scheme string
	// Attempts is the maximum number of owners that are tried, one after the other; 0 means
	// [DefaultAttempts].
	Attempts int
	// Wait is the maximum total time for which a request waits for an owner that accepts it; 0
	// means [DefaultWait]. After it the response is 503.
	Wait time.Duration
	// MaxBody is the maximum size of a body, in bytes, that is buffered to be sent again after
	// a refusal; 0 means [DefaultMaxBody]. A larger body is sent once. The router reads this
	// much, or the whole body, before it forwards. A client that sends less and waits for a
	// reply waits forever.
	MaxBody int64
	// Failed receives the full reason why a request reached no owner; the client sees only a
	// summary. Nil logs it with slog.Default as a warning, up to 20 in a second.
	Failed func(r *http.Request, err error)
}

func (o *Options) resolve() Options {
	r := *cmp.Or(o, &Options{})
	if r.Transport == nil {
		r.Transport = http.DefaultTransport
	}
	if r.Failed == nil {
		var limit observe.LogLimit
		r.Failed = func(q *http.Request, err error) {
			if suppressed, ok := limit.Admit(); ok {
				slog.WarnContext(q.Context(), "request not routed", "method", q.Method, "path", q.URL.Path, "error", err.Error(), "suppressed", suppressed)
			}
		}
	}
	r.Scheme = cmp.Or(r.Scheme, "http")
	r.Attempts = cmp.Or(r.Attempts, DefaultAttempts)
	r.Wait = cmp.Or(r.Wait, DefaultWait)
	r.MaxBody = cmp.Or(r.MaxBody, DefaultMaxBody)
	return r
}

// Handler returns a handler that serves keys of this member by next and forwards other
// requests. next runs inside [partition.Group.Do]: its partition does not move before next has
// returned.
func Handler(g *partition.Group, key Key, next http.HandlerFunc, o *Options) http.Handler {
	router := Router(g.Map(), key, o)
	local := Owner(g, key, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(EpochHeader) != "" { // a forwarded request is never forwarded again
			local.ServeHTTP(w, r)
			return
		}
		k, err := key(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if _, ours := g.Claim(k); !ours || !serve(g, k, 0, next, w, r) {
			router.ServeHTTP(w, r)
		}
	})
}

// Owner returns a handler that serves keys of this member by next, and refuses other requests
// with 421.
func Owner(g *partition.Group, key Key, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		epoch, err := epochOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !serve(g, k, epoch, next, w, r) {
			refuse(w, k, g.Map().Locate(k))
		}
	})
}

// epochOf returns the epoch by which r was routed; 0 if it was not.
func epochOf(r *http.Request) (interlock.Token, error) {
	text := r.Header.Get(EpochHeader)
	if text == "" {
		return 0, nil
	}
	return interlock.ParseToken(text)
}

// serve runs next if this member owns k, and under epoch unless that is 0. If the claim is lost
// meanwhile, next's context ends and the guard rejects its writes.
func serve(g *partition.Group, k string, epoch interlock.Token, next http.HandlerFunc, w http.ResponseWriter, r *http.Request) (served bool) {
	_ = g.DoUnder(r.Context(), epoch, k, func(ctx context.Context, c interlock.Claim) error {
		served = true
		next(w, r.WithContext(context.WithValue(ctx, claimKey{}, c)))
		return nil
	})
	return served
}

type claimKey struct{}

// Claim returns the claim of the partition of the request's key; pass it to the guard. It is in
// the context of requests that [Handler] and [Owner] serve.
func Claim(ctx context.Context) (interlock.Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(interlock.Claim)
	return c, ok
}

func refuse(w http.ResponseWriter, k string, at partition.Location) {
	w.Header().Set(EpochHeader, strconv.FormatInt(int64(at.Epoch), 10))
	http.Error(w, (&partition.NotOwnerError{Key: k, At: at}).Error(), http.StatusMisdirectedRequest)
}
