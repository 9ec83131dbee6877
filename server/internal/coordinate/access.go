package coordinate

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// refuse answers a request that is not served, with the reason.
func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	text, _ := json.Marshal(map[string]string{"error": why, "kind": "definite"})
	_, _ = io.WriteString(w, string(text)+"\n") // fails if the client has disconnected
}

// open are the paths that need no token. They report only whether the service is
// healthy.
var open = []string{"/healthz", "/readyz"}

// trusted requires a token in a request if there is a file of tokens.
func trusted(tokens *secretFile, h http.Handler) http.Handler {
	if tokens == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if slices.Contains(open, r.URL.Path) || strings.EqualFold(scheme, "Bearer") && fits(tokens.all(), shown) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "the request does not show a token of this coordinator, as in Authorization: Bearer …")
	})
}

// fits compares the sum of shown with those of all tokens. The sums have one length, and
// the time of the comparison reveals nothing.
func fits(tokens []string, shown string) bool {
	got, fit := sha256.Sum256([]byte(shown)), 0
	for _, t := range tokens {
		want := sha256.Sum256([]byte(t))
		fit |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return fit == 1
}

// addressed returns a handler of requests whose Host is an IP address, localhost or one
// of the names. A page that reaches this process through its own name, which it has
// pointed at this address (DNS rebinding), sends that name.
func addressed(names []string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) }) {
			refuse(w, http.StatusMisdirectedRequest, "this coordinator is not called by the Host of the request: add it with --host")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// pageless returns a handler that treats every browser page as one of another site. The
// service has no pages, so one of its own origin came through a foreign name that
// resolves to this address.
func pageless(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		h.ServeHTTP(w, r)
	})
}
