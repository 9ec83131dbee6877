package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/supervise"
)

// The outcomes without a command; the others are supervise's.
const (
	notAcquired = "not_acquired"
	cancelled   = "cancelled"
	unreachable = "unreachable"
	notStarted  = "not_started"
	failed      = "failed"
)

// report is the content of the file of --report.
type report struct {
	Outcome   string          `json:"outcome"`
	Lock      string          `json:"lock"`
	Token     interlock.Token `json:"token,string,omitempty"` // a string: too large for many JSON readers' numbers
	Owner     string          `json:"owner,omitempty"`
	WaitedMS  int64           `json:"waited_ms"`
	HeldMS    int64           `json:"held_ms"`
	ChildExit *int            `json:"child_exit"` // null if it did not exit
	Signal    int             `json:"signal,omitempty"`
	Error     string          `json:"error,omitempty"`
}

// checkReport rejects early a report that cannot be written. An existing path must
// be a file: the report replaces it, even /dev/null.
func checkReport(file string) error {
	if file == "" {
		return nil
	}
	dir := filepath.Dir(file)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return usage("--report %s cannot be written: %s is not a directory", file, dir)
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() || strings.HasSuffix(file, "/") {
		return usage("--report %s cannot be written: it is not a file", file)
	}
	return nil
}

func (r *report) write(file string) error {
	if file == "" {
		return nil
	}
	return writeAtomically(file, r)
}

// refused records why no command ran.
func (r *report) refused(err error) {
	r.Error = err.Error()
	var start *supervise.StartError
	var s *signalled
	switch code := codeOf(err); {
	case errors.As(err, &start) || code == exitNotRunnable || code == exitNotFound || code == exitUsage:
		r.Outcome = notStarted
	case errors.As(err, &s):
		r.Outcome, r.Signal = cancelled, int(s.number)
	case errors.Is(err, interlock.ErrHeld) || code == exitNotAcquired:
		r.Outcome = notAcquired
	case code == exitUnreachable:
		r.Outcome = unreachable
	default:
		r.Outcome = failed
	}
}

// ran records how a command ended.
func (r *report) ran(result supervise.Result, held time.Duration) {
	r.Outcome, r.HeldMS = string(result.Outcome), held.Milliseconds()
	if result.Status.Signal != 0 {
		r.Signal = int(result.Status.Signal)
	} else {
		r.ChildExit = &result.Status.Code
	}
	if result.Why != nil {
		r.Error = result.Why.Error()
	}
}
