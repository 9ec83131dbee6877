package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock"
)

// receive reads a request whole, for no longer than the service has patience: what it
// waits for afterwards is another matter.
func (s *Service) receive(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.patience)) // who serves it otherwise sees to that
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return badRequest("the request cannot be read: %v", err)
	}
	_ = control.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(text))
	return nil
}

// maxRequest is the longest request, in bytes.
const maxRequest = 1 << 20

// read takes a request's JSON, strictly: a field that is misspelled is an error.
func read[T any](r *http.Request) (v T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, badRequest("the request is not as it should be: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return v, badRequest("the request has more than one JSON value")
	}
	return v, nil
}

// waiting is how long the request wants to wait for the end; 0 is not at all.
func waiting(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 10*time.Minute {
		return 0, badRequest("wait is %q: it is a duration such as 10s, at most 10m", text)
	}
	return d, nil
}

// duration is one of JSON: "30s".
type duration time.Duration

// UnmarshalText reads what time.ParseDuration does, from zero on.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%q is below zero", text)
	}
	*d = duration(v)
	return err
}

// MarshalText is its inverse.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// by is who does something by hand, and why.
type by struct {
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	Step   string          `json:"step,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
}

// ended reports whether ctx came to its end while something was waited for, which is no
// failure of it.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && interlock.Kind(err) == interlock.Uncertain && errors.Is(err, context.Cause(ctx))
}
