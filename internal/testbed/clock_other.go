//go:build !(linux && amd64)

package testbed

import (
	"testing"
	"time"
)

// StepClock skips the test: see clock_linux_amd64.go.
func (s *Server) StepClock(time.Duration) { skipClock(s.tb) }

// StepClock skips the test: see clock_linux_amd64.go.
func (p *Process) StepClock(time.Duration) { skipClock(p.tb) }

func skipClock(tb testing.TB) {
	tb.Helper()
	tb.Skip("the clock of a process can be stepped on Linux for amd64 only")
}
