package barrier

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
)

// undoneByOthers is the error of drivers for a deadlock.
var undoneByOthers = &interlock.Error{Op: "run statement", Driver: "x", Kind: interlock.Retryable, Err: errors.New("deadlock")}

// TestRepeat: a transaction that the database undid because of others runs again, with pauses, a
// bounded number of times; no other does. It is reported as not done.
func TestRepeat(t *testing.T) {
	plain := errors.New("plain")
	for _, c := range []struct {
		what   string
		errs   []error // of the runs; the last one repeats
		table  Table
		runs   int
		target error
		class  branch.Class
	}{
		{"done", []error{nil}, Table{}, 1, nil, branch.ClassUnknown},
		{"done later", []error{undoneByOthers, undoneByOthers, nil}, Table{}, 3, nil, branch.ClassUnknown},
		{"never done", []error{undoneByOthers}, Table{}, DefaultAttempts, undoneByOthers, branch.ClassRetry},
		{"once only", []error{undoneByOthers}, Table{Attempts: 1}, 1, undoneByOthers, branch.ClassRetry},
		{"none is one", []error{undoneByOthers}, Table{Attempts: -1}, 1, undoneByOthers, branch.ClassRetry},
		{"plain", []error{plain}, Table{}, 1, plain, branch.ClassUnknown},
		{"unknown", []error{&interlock.Error{Op: "commit", Driver: "x", Kind: interlock.Uncertain, Err: plain}}, Table{}, 1, plain, branch.ClassUnknown},
		{"the function's own", []error{branch.Retry(undoneByOthers)}, Table{}, 1, undoneByOthers, branch.ClassRetry},
		{"ongoing", []error{branch.InProgress(time.Second)}, Table{}, 1, nil, branch.ClassInProgress},
	} {
		t.Run(c.what, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				runs, began := 0, time.Now()
				err := c.table.repeat(t.Context(), func() error {
					runs++
					return c.errs[min(runs, len(c.errs))-1]
				})
				class, _ := branch.ClassOf(err)
				if runs != c.runs || c.target != nil && !errors.Is(err, c.target) || class != c.class {
					t.Errorf("%d runs, %v (%v)", runs, err, class)
				}
				if took := time.Since(began); took == 0 != (c.runs == 1) || took > time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestRepeatEnds: repetition ends with the caller's context.
func TestRepeatEnds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		runs, began := 0, time.Now()
		err := Table{}.repeat(ctx, func() error { runs++; return undoneByOthers })
		if runs != 1 || !errors.Is(err, undoneByOthers) || time.Since(began) > time.Millisecond {
			t.Errorf("%d runs, %v, after %v", runs, err, time.Since(began))
		}
	})
}

// TestReason: the stored reason of a refusal is bounded, and is text.
func TestReason(t *testing.T) {
	long := make([]byte, maxReason+1)
	for i := range long {
		long[i] = 'x'
	}
	copy(long[maxReason-1:], "é")
	if got := reason(errors.New(string(long))); len(got) != maxReason-1 {
		t.Errorf("%d bytes", len(got))
	}
	if got := reason(errors.New("a\xffb")); got != "a�b" {
		t.Errorf("%q", got)
	}
}
