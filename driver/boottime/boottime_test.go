package boottime

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestNowAdvancesWithRealTime(t *testing.T) {
	wall := time.Now()
	a := Now()
	for time.Since(wall) < 20*time.Millisecond {
	}
	b := Now()
	if d := b.Sub(a); d < 19*time.Millisecond || d > 5*time.Second {
		t.Fatalf("20 ms of spinning measured as %v", d)
	}
}

func TestNowNeverGoesBack(t *testing.T) {
	last := Now()
	for range 200_000 {
		now := Now()
		if now < last {
			t.Fatalf("went back by %v", last.Sub(now))
		}
		last = now
	}
}

func TestNowFollowsVirtualTime(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		a := Now()
		if a <= 0 {
			t.Fatalf("reading %v", a)
		}
		time.Sleep(time.Hour)
		if d := Now().Sub(a); d != time.Hour {
			t.Fatalf("a virtual hour measured as %v", d)
		}
	})
}
