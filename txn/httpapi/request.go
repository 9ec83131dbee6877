package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
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

// read parses a request's JSON strictly: unknown and repeated fields are errors.
func read[T any](r *http.Request) (v T, err error) {
	text, err := io.ReadAll(r.Body) // received before
	if err != nil {
		return v, badRequest("the request cannot be read: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, badRequest("the request is invalid: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return v, badRequest("the request has more than one JSON value")
	}
	return v, exact(json.NewDecoder(bytes.NewReader(text)), reflect.TypeFor[T]())
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
