package drivertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/group"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Caller is one owner's request for a lock, with its events on channels, for a driver's own tests.
type Caller struct {
	driver.Request
	Waiting chan driver.Place
	Lost    chan error
}

// Ask returns a request for a lock by owner.
func Ask(lock, owner string) Caller {
	c := Caller{
		Request: driver.Request{Name: lock, Owner: owner},
		Waiting: make(chan driver.Place, 1000), // further ones are dropped
		Lost:    make(chan error, 10),
	}
	c.Events = driver.Events{
		Waiting: func(p driver.Place) {
			select {
			case c.Waiting <- p:
			default:
			}
		},
		Lost: func(cause error) { c.Lost <- cause },
	}
	return c
}

// Acquire waits for the grant and fails the test if none arrives soon.
func Acquire(t testing.TB, d driver.Fenced, c Caller) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g, err := d.Acquire(ctx, c.Request)
	if err != nil {
		t.Fatalf("acquire %q as %s: %v", c.Name, c.Owner, err)
	}
	return g
}

// Release releases the lock and fails the test if that is not confirmed soon.
func Release(t testing.TB, d driver.Fenced, c Caller) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Release(ctx, c.Name, c.Owner); err != nil {
		t.Fatalf("release %q as %s: %v", c.Name, c.Owner, err)
	}
}

// Outcome is the result of an Acquire.
type Outcome struct {
	driver.Grant
	Err error
}

// Begin acquires in the background.
func Begin(t testing.TB, d driver.Fenced, c Caller) <-chan Outcome {
	done := make(chan Outcome, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	go func() {
		g, err := d.Acquire(ctx, c.Request)
		done <- Outcome{g, err}
	}()
	return done
}

// Wait acquires in the background and returns when the owner is in the queue.
func Wait(t testing.TB, d driver.Fenced, c Caller) <-chan Outcome {
	t.Helper()
	done := Begin(t, d, c)
	testbed.Receive(t, c.Waiting, "word that "+c.Owner+" waits for "+c.Name)
	return done
}

// OpenAtOnce opens and closes many drivers of one namespace at once.
func OpenAtOnce(t *testing.T, many int, open func(ctx context.Context, i int) (interface{ Close(context.Context) error }, error)) {
	t.Helper()
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			<-start
			d, err := open(t.Context(), i)
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			_ = d.Close(t.Context()) // always nil
		})
	}
	close(start)
	all.Wait()
}

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
