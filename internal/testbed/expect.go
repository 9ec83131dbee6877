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

// WantKind fails the test unless err has the given kind and, unless target is nil, matches it.
func WantKind(tb testing.TB, err error, kind interlock.ErrorKind, target error) {
	tb.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		tb.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, target)
	}
}
