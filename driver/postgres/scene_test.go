package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var owners atomic.Int64

func newOwner() string { return fmt.Sprint("test/", owners.Add(1)) }

// openOn opens a driver that is closed with the test.
func openOn(t testing.TB, addr string, ttl time.Duration) *Driver {
	t.Helper()
	d, err := Open(t.Context(), configOf(t, urlAt(addr)), &Options{TTL: ttl})
	testbed.OK(t, err)
	closeAfter(t, d)
	return d
}

func closeAfter(t testing.TB, d driver.Fenced) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// grantOf is what an Acquire gave.
type grantOf struct {
	owner string
	grant driver.Grant
	lost  chan error
	err   error
}

// hold acquires and gives everything.
func hold(t testing.TB, d driver.Fenced, name string) grantOf {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
	defer cancel()
	g := attempt(ctx, d, name, driver.Request{})
	if g.err != nil {
		t.Fatalf("acquire %q: %v", name, g.err)
	}
	return g
}

func attempt(ctx context.Context, d driver.Fenced, name string, r driver.Request) grantOf {
	g := grantOf{owner: newOwner(), lost: make(chan error, 10)}
	r.Name, r.Owner = name, g.owner
	r.Events.Lost = func(cause error) { g.lost <- cause }
	g.grant, g.err = d.Acquire(ctx, r)
	return g
}

// take acquires, and gives the owner.
func take(t testing.TB, d driver.Fenced, name string) string {
	t.Helper()
	return hold(t, d, name).owner
}

func give(t testing.TB, d driver.Fenced, name, owner string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
	defer cancel()
	if err := d.Release(ctx, name, owner); err != nil {
		t.Fatalf("release %q: %v", name, err)
	}
}

// refuse requires that another holds name.
func refuse(t testing.TB, d driver.Fenced, name string) *interlock.HeldError {
	t.Helper()
	g := attempt(t.Context(), d, name, driver.Request{NoWait: true})
	var held *interlock.HeldError
	if !errors.As(g.err, &held) {
		t.Fatalf("acquire %q, which is held: %v", name, g.err)
	}
	return held
}

// await acquires in the background, and returns when it waits.
func await(t testing.TB, d driver.Fenced, name string) <-chan grantOf {
	t.Helper()
	waits, done := make(chan struct{}, 100), make(chan grantOf, 1)
	go func() {
		var r driver.Request
		r.Events.Waiting = func(driver.Place) {
			select {
			case waits <- struct{}{}:
			default:
			}
		}
		done <- attempt(t.Context(), d, name, r)
	}()
	select {
	case <-waits:
	case g := <-done:
		t.Fatalf("acquire %q did not wait: %v", name, g.err)
	case <-time.After(bound):
		t.Fatalf("acquire %q: no word of waiting", name)
	}
	return done
}

func receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(bound):
		t.Fatalf("%s: nothing after %v", what, bound)
	}
	panic("unreachable")
}
