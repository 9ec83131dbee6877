package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// grouped opens a driver that sends every request in a group.
func grouped(t *testing.T, addr string) *Driver {
	d := openOn(t, addr, nil)
	d.conn.crowd = 0
	take(t, d, "first") // the connection stands
	return d
}

// asked waits until n requests are under way, while the server does not answer.
func asked(t *testing.T, d *Driver, n int) {
	testbed.Eventually(t, fmt.Sprint(n, " requests are under way"), bound, func() bool {
		d.conn.mu.Lock()
		defer d.conn.mu.Unlock()
		return len(d.conn.last) == n
	})
}

// ended waits for the end of a request.
func ended(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(bound):
		t.Fatal("a request does not end")
		return nil
	}
}

// TestGroupIsOneRequest, and what is wrong with one name fails no other.
func TestGroupIsOneRequest(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), grouped(t, server.Addr())
	const names = 80
	spoil := func(i int) {
		k, err := d.layout.keys(fmt.Sprint("n/", i), "o")
		if err == nil {
			err = raw(t, operator, "SET", k.queue, "a string").Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// together calls do for all names while the server stands still, and returns the errors.
	together := func(do func(i int) error) []error {
		before := calls(t, operator)
		server.Pause()
		failed := make([]chan error, names)
		for i := range failed {
			failed[i] = make(chan error, 1)
			go func() { failed[i] <- do(i) }()
		}
		asked(t, d, names)
		server.Resume()
		errs := make([]error, names)
		for i := range errs {
			errs[i] = ended(t, failed[i])
		}
		if n := since(t, operator, before)["evalsha"]; n > 4 {
			t.Errorf("%d requests for %d names", n, names)
		}
		return errs
	}
	check := func(errs []error, spoiled int) {
		t.Helper()
		for i, err := range errs {
			switch {
			case i != spoiled && err != nil:
				t.Errorf("name %d: %v", i, err)
			case i == spoiled && (err == nil || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "WRONGTYPE")):
				t.Errorf("the name with a foreign key: %v", err)
			}
		}
	}
	tokens := make([]interlock.Token, names)
	spoil(7)
	check(together(func(i int) error {
		g, err := d.Acquire(t.Context(), driver.Request{Name: fmt.Sprint("n/", i), Owner: fmt.Sprint("o/", i)})
		tokens[i] = g.Token
		return err
	}), 7)
	for i, token := range tokens {
		if i != 7 && token == 0 {
			t.Errorf("name %d has no token", i)
		}
	}
	spoil(30)
	check(together(func(i int) error { return d.Release(t.Context(), fmt.Sprint("n/", i), fmt.Sprint("o/", i)) })[8:], 30-8)
}

// TestReleaseFollowsItsGroup: a caller that leaves while its request waits in a group gets an
// unknown outcome, and its release is not overtaken by the request.
func TestReleaseFollowsItsGroup(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), grouped(t, server.Addr())
	const names = 8
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, names)
	for i := range names {
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Name: fmt.Sprint("n/", i), Owner: fmt.Sprint("o/", i)})
			failed <- err
		}()
	}
	asked(t, d, names)
	cancel()
	released := make(chan error, names)
	for range names {
		if err := ended(t, failed); !errors.Is(err, interlock.ErrUncertain) {
			t.Errorf("a caller that left: %v", err)
		}
	}
	for i := range names {
		go func() { released <- d.Release(t.Context(), fmt.Sprint("n/", i), fmt.Sprint("o/", i)) }()
	}
	server.Resume()
	for range names {
		if err := ended(t, released); err != nil {
			t.Error(err)
		}
	}
	for i := range names {
		if n, err := raw(t, operator, "EXISTS", fmt.Sprint("n/", i)).AsInt64(); n != 0 || err != nil {
			t.Errorf("n/%d is held after its release: %d, %v", i, n, err)
		}
	}
}
