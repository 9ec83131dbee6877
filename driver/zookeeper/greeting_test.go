package zookeeper

import (
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestAClientLeavesAServerThatDoesNotGreet: a client leaves a server that accepts connections and
// does not answer, like a starting one, for the next server.
func TestAClientLeavesAServerThatDoesNotGreet(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	defer silent.Close()
	server := borrow(t)
	const session = 10 * time.Second // for which the client alone waits 66 s
	conn, events, err := zk.Connect([]string{silent.Addr().String(), server.Addr()}, session,
		zk.WithLogger(quiet{}), zk.WithLogInfo(false), zk.WithDialer(Dialer(200*time.Millisecond, nil)),
		zk.WithHostProvider(Hosts()))
	testbed.OK(t, err)
	defer func() {
		conn.Close()
		for range events {
		}
	}()
	testbed.Eventually(t, "a session", 30*time.Second, func() bool { return conn.State() == zk.StateHasSession })
}
