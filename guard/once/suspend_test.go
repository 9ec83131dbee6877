package once

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/memory"
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
