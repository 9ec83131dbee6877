package redis

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/boottime"
)

const second = boottime.Instant(time.Second)

func TestLeaseCountsFromWhenItWasAskedFor(t *testing.T) {
	l := newLease(10*second, 10*time.Second)
	if got, want := l.remaining(12*second), 7900*time.Millisecond; got != want {
		t.Fatalf("%v remain, want %v (1 %% is kept for the drift of clocks)", got, want)
	}
	l.extend(15*second, 10*time.Second)
	l.extend(11*second, 10*time.Second) // a late answer to an earlier request
	if got, want := l.remaining(20*second), 4900*time.Millisecond; got != want {
		t.Fatalf("%v remain after a renewal, want %v", got, want)
	}
}

func TestLeaseSeenToEndDoesNotRevive(t *testing.T) {
	l := newLease(0, 10*time.Second)
	if l.remaining(9900*boottime.Instant(time.Millisecond)) > 0 {
		t.Fatal("it did not end at its deadline")
	}
	l.extend(9*second, 10*time.Second)
	if left := l.remaining(10 * second); left > 0 {
		t.Fatalf("a late answer revived it: %v remain", left)
	}
	lost := newLease(0, 10*time.Second)
	lost.end()
	if left := lost.remaining(second); left > 0 {
		t.Fatalf("%v remain of a lost lease", left)
	}
}
