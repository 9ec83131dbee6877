package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/group"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Together runs n calls of do that share a request of g, except the first, which occupies the only
// place.
func Together[Q, A any](t *testing.T, g *group.Group[Q, A], n int, do func(i int) error) {
	t.Helper()
	filled, free := make(chan struct{}), make(chan struct{})
	alone, requests, limit := g.Alone, g.Requests, g.Limit
	g.Requests, g.Limit = 1, time.Hour
	g.Alone = func(context.Context, Q) (none A, err error) {
		close(filled)
		<-free
		return none, nil
	}
	errs := make(chan error, n+1)
	go func() {
		var none Q
		_, err := g.Do(t.Context(), "", none)
		errs <- err
	}()
	testbed.Receive(t, filled, "the one request")
	g.Alone = alone
	for i := range n {
		go func() { errs <- do(i) }()
	}
	testbed.Eventually(t, "the calls wait", patience, func() bool { return g.Waiting() == n })
	g.Requests, g.Limit = requests, limit
	close(free)
	for range n + 1 {
		testbed.OK(t, testbed.Receive(t, errs, "an answer"))
	}
}
