package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNobodyListens: without a connection a request was not sent.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t)
	d := open(t, dial(t, server.Addr()), nil)
	token(t, d, "n", "warm")
	server.Kill()
	testbed.Eventually(t, "a refused connection is Retryable", patience, func() bool {
		r := ask("n", "me")
		r.NoWait = true
		_, err := d.Acquire(bounded(t), r.Request)
		return interlock.Kind(err) == interlock.Retryable
	})
}

// TestOwnBoundIsNotTheCallers: if etcd does not answer within a bound of the
// driver, the error does not match the caller's deadline.
func TestOwnBoundIsNotTheCallers(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t)
	d := open(t, dial(t, server.Addr()), nil)
	d.pace.request = 1 // nanosecond: no request is answered in time
	_, err := d.Acquire(context.WithoutCancel(t.Context()), ask("n", "me").Request)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errSlow) {
		t.Errorf("a bound of the driver's: %v", err)
	}
}
