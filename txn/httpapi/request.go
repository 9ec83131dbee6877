package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/strictjson"
)

// receive reads a whole request within the service's patience.
func (s *Service) receive(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.patience)) // without support, the server bounds it
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return tooLong("the request")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &requestError{http.StatusRequestTimeout, interlock.Retryable, fmt.Sprintf("the request has not arrived within %v", s.patience)}
	case err != nil:
		return badRequest("the request cannot be read: %v", err)
	}
	_ = control.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(text))
	return nil
}

// maxRequest bounds a request, in bytes.
const maxRequest = 1 << 20

// read parses a request's JSON.
func read[T any](r *http.Request) (v T, err error) {
	text, err := io.ReadAll(r.Body) // received before
	if err != nil {
		return v, badRequest("the request cannot be read: %v", err)
	}
	if v, err = strictjson.Decode[T](text); err != nil {
		return v, badRequest("the request is invalid: %v", err)
	}
	return v, nil
}

// waiting returns how long the request waits for the end; 0 means not at all.
func waiting(r *http.Request) (time.Duration, error) {
	query, err := parameters(r, "wait")
	if err != nil || query.Get("wait") == "" {
		return 0, err
	}
	text := query.Get("wait")
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 10*time.Minute {
		return 0, badRequest("wait is %q: it must be a duration such as 10s, at most 10m", text)
	}
	return d, nil
}

// readWaiting parses a request's JSON, and how long the request waits.
func readWaiting[T any](r *http.Request) (v T, wait time.Duration, err error) {
	if wait, err = waiting(r); err == nil {
		v, err = read[T](r)
	}
	return v, wait, err
}

// parameters returns the query's values. Only these names are allowed, each once.
func parameters(r *http.Request, names ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query cannot be read: %v", err)
	}
	for other, values := range query {
		if !slices.Contains(names, other) || len(values) > 1 {
			return nil, badRequest("the query has %q: only %s are allowed, each once", other, strings.Join(names, ", "))
		}
	}
	return query, nil
}

// duration is a JSON duration, such as "30s".
type duration time.Duration

// UnmarshalText parses a duration of time.ParseDuration, not below zero.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%q is below zero", text)
	}
	*d = duration(v)
	return err
}

// MarshalText is the inverse of UnmarshalText.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// ended reports whether ctx ended during a wait, which is not a failure.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && interlock.Kind(err) == interlock.Uncertain && errors.Is(err, context.Cause(ctx))
}

// Within returns an [Options.Allow] that permits the addresses below the given ones. Each has a
// scheme, a host and a path. An address is below another one if it has the same scheme, host and
// port, and its path is the same or has further segments. So http://a/b and http://a/b/c are below
// http://a/b, but http://a/bc is not. Paths that servers interpret differently are refused: with ;
// or \, with dots or empty segments, or with one of these, a slash or a percent sign encoded.
func Within(addresses ...string) (func(*url.URL) error, error) {
	var all []*url.URL
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err != nil || u.Hostname() == "" || u.Path == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, failure.Bug("allow", failure.RedactURL(address), "it is not a scheme, a host and a path, as in http://10.0.0.7/")
		}
		if err := canonical(u); err != nil {
			return nil, failure.Bug("allow", failure.RedactURL(address), "%w", err)
		}
		all = append(all, u)
	}
	return func(u *url.URL) error {
		if err := canonical(u); err != nil {
			return err
		}
		for _, below := range all {
			if below.Scheme == u.Scheme && hostPort(below) == hostPort(u) && beneath(u.Path, below.Path) {
				return nil
			}
		}
		return fmt.Errorf("the address is not below one that is allowed")
	}, nil
}

// canonical refuses a path that servers interpret differently.
func canonical(u *url.URL) error {
	encoded := strings.ToLower(u.EscapedPath())
	for _, trick := range []string{"%2f", "%2e", "%5c", "%3b", "%25", "%00"} {
		if strings.Contains(encoded, trick) {
			return fmt.Errorf("the path has %s, which servers interpret differently", trick)
		}
	}
	if strings.ContainsAny(u.Path, `;\`) {
		return fmt.Errorf(`the path has ; or \, which servers interpret differently`)
	}
	if clean := path.Clean("/" + u.Path); u.Path != "" && u.Path != clean && u.Path != clean+"/" {
		return fmt.Errorf("the path has dots or empty segments")
	}
	return nil
}

// beneath reports whether a path equals begin, or is begin with further segments.
func beneath(p, begin string) bool {
	if p == "" {
		p = "/"
	}
	return p == begin || strings.HasPrefix(p, strings.TrimSuffix(begin, "/")+"/")
}

// hostPort returns the host in its canonical form, with its port.
func hostPort(u *url.URL) string {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return host + " " + port
}
