package backoff

import (
	"context"
	"testing"
	"time"
)

func TestDelay(t *testing.T) {
	p := Policy{First: 80 * time.Millisecond, Max: time.Second}
	for _, c := range []struct {
		failed int
		random float64
		want   time.Duration
	}{
		{1, 0, 10 * time.Millisecond},
		{1, 0.5, 40 * time.Millisecond},
		{3, 0.5, 160 * time.Millisecond},
		{5, 0.5, 500 * time.Millisecond},
		{100, 0.5, 500 * time.Millisecond}, // capped, no overflow
	} {
		if got := p.Delay(c.failed, c.random); got != c.want {
			t.Errorf("Delay(%d, %v) = %v, want %v", c.failed, c.random, got, c.want)
		}
	}
}

func TestSleep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if !Sleep(ctx, time.Millisecond) {
		t.Error("it did not last")
	}
	cancel()
	if Sleep(ctx, time.Hour) {
		t.Error("it outlasted its context")
	}
}
