package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestShapes: readers and writers, permits and several names on Kubernetes.
func TestShapes(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, start(t, sharedServer(t)))
}

// testElection: each leader resigns, and the next one has a higher term.
func testElection(s *scene) {
	var last interlock.Token
	for range 3 {
		e, err := elect.New(s.open(Options{}), nil)
		testbed.OK(s, err)
		err = e.Run(s.Context(), "leader", func(_ context.Context, term *elect.Term) error {
			if term.Token() <= last {
				s.Errorf("term %d after %d", term.Token(), last)
			}
			last = term.Token()
			return nil
		})
		testbed.OK(s, errors.Join(err, e.Close(s.Context())))
	}
}

// testServerClockJumps: a holder keeps its lock and tokens rise, wherever the API
// server's clock jumps.
func testServerClockJumps(s *scene) {
	var ahead atomic.Int64
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil {
			answer.Header.Set("Date", time.Now().Add(time.Duration(ahead.Load())).UTC().Format(http.TimeFormat))
		}
		return answer, err
	})
	d, other := s.open(Options{}), s.open(Options{})
	for i, jump := range []time.Duration{0, years, -10 * time.Hour, 10 * time.Hour} {
		owner := fmt.Sprint("owner ", i)
		g := s.acquire(d, "n", owner)
		ahead.Store(int64(jump))
		if _, err := s.try(other, "n", "late"); !errors.Is(err, interlock.ErrHeld) {
			s.Fatalf("the clock went by %v, and another is granted the lock: %v", jump, err)
		}
		if g.Lease.Remaining() <= 0 {
			s.Fatalf("the clock went by %v, and the lease has ended", jump)
		}
		s.release(d, "n", owner)
		s.sees(other, "n", "it is free", func(now sight) bool { return now.holder() == "" })
		if next := s.acquire(other, "n", owner+"'s heir"); next.Token <= g.Token || driver.Plausible(next.Token.Counter(), time.Now()) != nil {
			s.Fatalf("the clock went by %v: token %d after %d", jump, next.Token, g.Token)
		}
		s.release(other, "n", owner+"'s heir")
		s.sees(d, "n", "it is free", func(now sight) bool { return now.holder() == "" })
	}
}
