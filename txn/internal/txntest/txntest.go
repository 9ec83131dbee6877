// Package txntest has what the tests of the packages below txn share: checks, virtual time,
// claims, and a journal whose process can crash or stop at any of its steps. It judges
// nothing: what has to hold is said by each package's own tests.
package txntest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// OK ends the test if there is an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantKind requires an error of a kind, and in its chain target unless that is nil.
func WantKind(t testing.TB, err error, kind interlock.ErrorKind, target error) {
	t.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		t.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, target)
	}
}

// Same requires a list.
func Same(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q\nwant %q", what, got, want)
	}
}

// Second is the error of a call of which nothing else is needed.
func Second[V any](_ V, err error) error { return err }

// Repeat is an error for each of n appends or calls.
func Repeat(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// Began is when the virtual time of a [Bubble] begins.
var Began = time.Now()

// Bubble runs a test in virtual time that begins at the present, so that tokens are
// plausible.
func Bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(Began))
		test(t)
	})
}
