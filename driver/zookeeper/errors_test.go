package zookeeper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestOwnBoundIsNotDefinite: a timeout of the driver is not Definite, even before the request was
// sent.
func TestOwnBoundIsNotDefinite(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d := open(t, &Options{Servers: []string{server.Addr()}})
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, errSlow)
	defer cancel()
	<-ctx.Done()
	_, err := ask(ctx, d.session, "look", "", func(c *zk.Conn) (string, error) { return "", nil })
	if interlock.Kind(err) != interlock.Retryable {
		t.Errorf("before it was sent: %v (%v)", err, interlock.Kind(err))
	}
	proxy := testbed.NewProxy(t, server.Addr())
	proxy.DropReplies()
	if _, err := Open(t.Context(), &Options{Servers: []string{proxy.Addr()}, TTL: 2 * time.Second}); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("no answer to the opening of a session: %v (%v)", err, interlock.Kind(err))
	}
}

// TestThrottledIsRetryable: a server does not execute a request that has waited for too long.
func TestThrottledIsRetryable(t *testing.T) {
	t.Parallel()
	if kind := kindOf(fmt.Errorf("unknown error: %v", zk.ErrCode(-127))); kind != interlock.Retryable { // as in the client
		t.Error(kind)
	}
}
