package testbed

import (
	"testing"
	"time"
)

func TestEventually(t *testing.T) {
	looks := 0
	Eventually(t, "the third look", bound, func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("it returned after %d checks, want 3", looks)
	}
	Eventually(t, "what holds already", 0, func() bool { return true })
}

func TestEventuallyNamesWhatDidNotCome(t *testing.T) {
	const limit = 20 * time.Millisecond
	o, began := new(outcome), time.Now()
	func() {
		defer func() { recover() }()
		Eventually(o, "the key is gone", limit, func() bool { return false })
	}()
	if o.failed != "not within 20ms: the key is gone" {
		t.Errorf("failed as %q", o.failed)
	}
	if took := time.Since(began); took < limit {
		t.Errorf("it ended after %v, and had %v", took, limit)
	}
}
