// Package route brings an HTTP request to the member of a group that owns its
// key. It does not make the request happen once, and not under the guard: the
// handler does that, with the claim that it is given.
//
//	http.Handle("/orders/", route.Handler(g, orderID, ship, nil))
//
//	func ship(w http.ResponseWriter, r *http.Request) {
//		c, _ := route.Claim(r.Context())
//		err := fence.Tx(r.Context(), db, marks, c, id, …)
//	}
//
// A request that reaches a member that does not own its key is forwarded to the
// one that does, together with the epoch by which it was found. A member that does
// not own the key under that very epoch refuses it with 421 Misdirected Request,
// before it does anything; the forwarder then looks again and retries. So a
// stale route costs a round trip, and never a call at the wrong member.
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
)

// EpochHeader carries the epoch by which a request was routed, and in a refusal
// the epoch that the refuser knows.
const EpochHeader = "Interlock-Epoch"

// A Key finds the key of a request. Its error is answered with 400.
type Key func(*http.Request) (string, error)

// Defaults of [Options].
const (
	DefaultAttempts = 5
	DefaultWait     = 5 * time.Second
	DefaultMaxBody  = 1 << 20
)

// Options of a router; nil and the zero value work.
type Options struct {
	// Transport sends what is forwarded; nil means http.DefaultTransport.
	Transport http.RoundTripper
	// Scheme is that of the members' addresses; empty means http.
	Scheme string
	// Attempts is how many owners, one after the other, are asked; 0 means
	// [DefaultAttempts].
	Attempts int
	// Wait is how long a request waits, in all, for its key to have an owner that
	// takes it; 0 means [DefaultWait]. Then it is answered with 503.
	Wait time.Duration
	// MaxBody is the largest body, in bytes, that is kept to be sent again when
	// a member refuses; 0 means [DefaultMaxBody]. A larger one is sent once. A
	// client that waits for an answer before it has sent so much waits for ever.
	MaxBody int64
	// Failed receives the reason why a request did not reach an owner, of which the
	// client sees only a part; nil logs it with slog.Default as a warning.
	Failed func(r *http.Request, err error)
}

func (o *Options) resolve() Options {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Transport == nil {
		r.Transport = http.DefaultTransport
	}
	if r.Failed == nil {
		r.Failed = func(q *http.Request, err error) {
			slog.WarnContext(q.Context(), "request not routed", "method", q.Method, "path", q.URL.Path, "error", err.Error())
		}
	}
	r.Scheme = cmp.Or(r.Scheme, "http")
	r.Attempts = cmp.Or(r.Attempts, DefaultAttempts)
	r.Wait = cmp.Or(r.Wait, DefaultWait)
	r.MaxBody = cmp.Or(r.MaxBody, DefaultMaxBody)
	return r
}

// Handler serves what this member owns by next and forwards the rest. next runs
// inside [partition.Group.Do]: its partition does not move before it has returned.
func Handler(g *partition.Group, key Key, next http.HandlerFunc, o *Options) http.Handler {
	router := Router(g.Map(), key, o)
	local := Owner(g, key, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(EpochHeader) != "" { // it was forwarded to us: never on and on
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

// Owner serves what this member owns by next, and refuses the rest with 421.
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

// epochOf is the epoch by which r was routed; 0 if it was not.
func epochOf(r *http.Request) (interlock.Token, error) {
	text := r.Header.Get(EpochHeader)
	if text == "" {
		return 0, nil
	}
	return interlock.ParseToken(text)
}

// serve runs next if k is owned here, and under epoch unless that is 0. That the
// claim was lost meanwhile reaches next by its context, and by the guard.
func serve(g *partition.Group, k string, epoch interlock.Token, next http.HandlerFunc, w http.ResponseWriter, r *http.Request) (served bool) {
	_ = g.DoUnder(r.Context(), epoch, k, func(ctx context.Context, c interlock.Claim) error {
		served = true
		next(w, r.WithContext(context.WithValue(ctx, claimKey{}, c)))
		return nil
	})
	return served
}

type claimKey struct{}

// Claim is the claim of the partition of the request's key, whose token a guard
// wants. It is in the context of what [Handler] and [Owner] serve.
func Claim(ctx context.Context) (interlock.Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(interlock.Claim)
	return c, ok
}

func refuse(w http.ResponseWriter, k string, at partition.Location) {
	w.Header().Set(EpochHeader, strconv.FormatInt(int64(at.Epoch), 10))
	http.Error(w, (&partition.NotOwnerError{Key: k, At: at}).Error(), http.StatusMisdirectedRequest)
}
