package coordinate

import (
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net/http"
	"strings"
)

// trusted is a handler for those who show the token, if there is one.
func trusted(token string, h http.Handler) http.Handler {
	if token == "" {
		return h
	}
	want := sha256.Sum256([]byte(token)) // of one length, so that the comparison tells nothing of it
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(shown))
		if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"the request does not show the token of this coordinator, as in Authorization: Bearer …","kind":"definite"}`+"\n") // who has left needs no answer
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
