package once

import (
	"errors"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

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
