package httpapi

import (
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/interlock-dev/interlock"
)

// answering serves the routes of mux. What is at none of them is answered as any other
// error, and never redirected: a POST that is sent on may arrive as a GET.
func answering(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := r.URL.EscapedPath(); at != path.Clean(at) {
			refuse(w, r, http.StatusNotFound)
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			w = unrouted{w, r}
		}
		mux.ServeHTTP(w, r)
	})
}

// unrouted says in JSON what mux says in plain text.
type unrouted struct {
	http.ResponseWriter
	request *http.Request
}

func (u unrouted) WriteHeader(status int)             { refuse(u.ResponseWriter, u.request, status) }
func (u unrouted) Write(text []byte) (n int, _ error) { return len(text), nil }

// refuse answers a request that nothing was made of.
func refuse(w http.ResponseWriter, r *http.Request, status int) {
	why := strings.ToLower(http.StatusText(status))
	reply(w, nil, &requestError{status, interlock.Definite, fmt.Sprintf("%.20s %.300s: %s", r.Method, r.URL.EscapedPath(), why)})
}
