package testbed

import (
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
)

// OK ends the test if there is an error.
func OK(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// WantKind fails the test unless err has the given kind and, unless is is nil, matches it.
func WantKind(tb testing.TB, err error, kind interlock.ErrorKind, is error) {
	tb.Helper()
	if err == nil || interlock.Kind(err) != kind || is != nil && !errors.Is(err, is) {
		tb.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, is)
	}
}
