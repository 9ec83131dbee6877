package kube

import (
	"errors"
	"net/http"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testReleaseOvertakesATake: a write under way while its owner releases takes
// nothing, and Acquire returns an error.
func testReleaseOvertakesATake(s *scene) {
	d := s.open(Options{})
	underWay, goOn := make(chan struct{}), make(chan struct{})
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPost {
			s.leases.replace(nil)
			close(underWay)
			<-goOn
		}
		return next.RoundTrip(r)
	})
	done := drivertest.Begin(s, d, drivertest.Ask("n", "ours"))
	testbed.Receive(s, underWay, "the write")
	s.release(d, "n", "ours")
	close(goOn)
	if o := testbed.Receive(s, done, "the end of Acquire"); !errors.Is(o.Err, interlock.ErrReleased) {
		s.Errorf("after a release: %v", o.Err)
	}
	if left := s.Residue(s.T, "n"); len(left) > 0 {
		s.Fatalf("the Lease names %q, which has released", left)
	}
}

// testReleaseEndsAWait, and the lock is not taken later.
func testReleaseEndsAWait(s *scene) {
	d := s.open(Options{})
	s.acquire(d, "n", "holder")
	done := s.queue(d, "n", "ours")
	s.release(d, "n", "ours")
	if o := testbed.Receive(s, done, "the end of Acquire"); !errors.Is(o.Err, interlock.ErrReleased) {
		s.Errorf("after a release: %v", o.Err)
	}
}
