package etcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/internal/boottime"
)

// TestTermIsNotRevived: a renewal that was confirmed too late changes nothing,
// whether or not anyone saw the time run out.
func TestTermIsNotRevived(t *testing.T) {
	const ttl = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		for _, look := range []bool{true, false} {
			begun := boottime.Now()
			term := &term{deadline: boottime.Deadline(begun, ttl)}
			time.Sleep(6 * time.Second)
			sent := boottime.Now()
			if left := term.remaining(); left != 3900*time.Millisecond {
				t.Fatalf("%v left, want 3.9s", left)
			}
			time.Sleep(time.Second)
			if !term.renew(sent, ttl) || term.remaining() != 8900*time.Millisecond {
				t.Fatalf("renewed in time, %v left, want 8.9s", term.remaining())
			}
			time.Sleep(time.Second)
			sent = boottime.Now()
			time.Sleep(ttl)
			if look && term.remaining() > 0 {
				t.Fatal("it did not end")
			}
			if term.renew(sent, 2*ttl) || term.remaining() > 0 {
				t.Fatalf("revived, %v left", term.remaining())
			}
		}
	})
}

func TestTermEnds(t *testing.T) {
	term := &term{deadline: boottime.Now().Add(time.Hour)}
	term.end()
	if term.renew(boottime.Now(), time.Hour) || term.remaining() > 0 {
		t.Fatalf("%v left", term.remaining())
	}
}
