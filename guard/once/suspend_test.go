package once

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// TestSuspendedBeforeTheEffect: the lease passes while the machine is suspended. Then the effect does not
// begin.
func TestSuspendedBeforeTheEffect(t *testing.T) {
	s, err := NewBestEffort(memory.NewOnce(), "c", nil)
	if err != nil {
		t.Fatal(err)
	}
	var slept time.Duration
	s.now = func() boottime.Instant {
		defer func() { slept += DefaultLease }()
		return boottime.Now().Add(slept)
	}
	outcome, err := s.Once(t.Context(), Message{ID: "m"}, func(context.Context) error {
		t.Error("the effect began")
		return nil
	})
	if outcome != Undone || interlock.Kind(err) != interlock.Retryable || !errors.Is(err, interlock.ErrExpired) {
		t.Errorf("%v, %v", outcome, err)
	}
}

// TestZeroValueLogsFailures: an inbox has no constructor, but logs by default.
func TestZeroValueLogsFailures(t *testing.T) {
	out := testbed.CaptureLog(t)
	report(nil, "c", Message{ID: "m"}, Mismatched, &MismatchError{})
	reportCleaned(nil, observe.OnceCleaned{Consumer: "c", Err: errors.New("boom")})
	if got := out.String(); !strings.Contains(got, "another payload") || !strings.Contains(got, "boom") {
		t.Errorf("logged %q", got)
	}
	out.Reset()
	silent := &observe.Once{Log: observe.Silent}
	report(silent, "c", Message{ID: "m"}, Mismatched, &MismatchError{})
	reportCleaned(silent, observe.OnceCleaned{Consumer: "c", Err: errors.New("boom")})
	report(nil, "c", Message{ID: "m"}, Duplicate, nil)
	if out.Len() > 0 {
		t.Errorf("logged %q", out.String())
	}
}
