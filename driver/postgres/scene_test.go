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
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var owners atomic.Int64

func newOwner() string { return fmt.Sprint("test/", owners.Add(1)) }

// openOn opens a driver that is closed with the test.
func openOn(t testing.TB, addr string, ttl time.Duration) *Driver {
	t.Helper()
	d, err := Open(t.Context(), configOf(t, urlAt(addr)), &Options{TTL: ttl})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
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
	g := attempt(testbed.Bounded(t), d, name, driver.Request{})
	testbed.OK(t, g.err)
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
	testbed.OK(t, d.Release(testbed.Bounded(t), name, owner))
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
	waits, done := make(chan struct{}, 1), make(chan grantOf, 1)
	r := driver.Request{Events: driver.Events{Waiting: func(driver.Place) { hints.Signal(waits) }}}
	go func() { done <- attempt(t.Context(), d, name, r) }()
	testbed.Receive(t, waits, "a place of "+name)
	return done
}
