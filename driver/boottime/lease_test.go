package boottime

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestDeadlineIsBeforeTheServersExpiry(t *testing.T) {
	sent := Instant(5 * time.Second)
	if got, want := Deadline(sent, 10*time.Second), Instant(14900*time.Millisecond); got != want {
		t.Fatalf("deadline %v, want %v", got, want)
	}
}

func TestLeaseCountsFromWhenItWasAskedFor(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		sent := Now()
		time.Sleep(2 * time.Second) // the answer took so long
		l := NewLease(sent, 10*time.Second)
		remains(t, l, 7900*time.Millisecond)

		early := Now()
		time.Sleep(3 * time.Second)
		if !l.Renew(Now(), 10*time.Second) {
			t.Fatal("refused in time")
		}
		remains(t, l, 9900*time.Millisecond)
		if !l.Renew(early, 10*time.Second) { // a late answer to an earlier request
			t.Fatal("refused in time")
		}
		remains(t, l, 9900*time.Millisecond)
	})
}

func TestEndedLeaseIsNotRevived(t *testing.T) {
	for name, looked := range map[string]bool{"seen to end": true, "not looked at": false} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				l := NewLease(Now(), 10*time.Second)
				time.Sleep(9 * time.Second)
				sent := Now()
				time.Sleep(900 * time.Millisecond)
				if looked {
					remains(t, l, 0)
				}
				if l.Renew(sent, 10*time.Second) {
					t.Fatal("a late answer revived it")
				}
				remains(t, l, 0)
			})
		})
	}
}

func TestLostLeaseHasEnded(t *testing.T) {
	l := NewLease(Now(), time.Hour)
	l.End()
	if l.Remaining() > 0 || l.Renew(Now(), time.Hour) || l.Remaining() > 0 {
		t.Fatalf("%v remain of a lost lease", l.Remaining())
	}
}

func remains(t *testing.T, l *Lease, want time.Duration) {
	t.Helper()
	if got := l.Remaining(); got != want {
		t.Fatalf("%v remain, want %v", got, want)
	}
}

func TestPartEndsWithTheWholeOrAlone(t *testing.T) {
	whole := NewLease(Now(), time.Hour)
	a, b := whole.Part(), whole.Part()
	if a.Remaining() <= 0 {
		t.Fatal("a part of a lease that lives has ended")
	}
	a.End()
	if a.Remaining() > 0 || b.Remaining() <= 0 || whole.Remaining() <= 0 {
		t.Error("the end of a part ends that part only")
	}
	whole.End()
	if b.Remaining() > 0 {
		t.Error("a part outlives its lease")
	}
}
