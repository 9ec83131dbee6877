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

// refuse answers a request that is not served.
func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	text, _ := json.Marshal(map[string]string{"error": why, "kind": "definite"})
	_, _ = io.WriteString(w, string(text)+"\n") // an error means that the client has left
}

// open are the paths that need no token. They say nothing but whether the service is
// well.
var open = []string{"/healthz", "/readyz"}

// trusted requires one of the tokens in a request, if there is a file of tokens.
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

// fits compares sums, which have one length, with all tokens: the time tells nothing of
// them.
func fits(tokens []string, shown string) bool {
	got, fit := sha256.Sum256([]byte(shown)), 0
	for _, t := range tokens {
		want := sha256.Sum256([]byte(t))
		fit |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return fit == 1
}

// addressed is a handler of requests whose Host is an IP address, localhost or one of
// the names. A page that was made to reach this process by a name of its own, which then
// resolves to this address, sends that name.
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

// pageless is a handler that counts every page in a browser as one of another site. It
// has none itself, so one of its own origin was led here: by a name of its own that was
// made to mean this address.
func pageless(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		h.ServeHTTP(w, r)
	})
}
