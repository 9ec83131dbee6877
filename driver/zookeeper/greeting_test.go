package zookeeper

import (
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestAClientLeavesAServerThatDoesNotGreet: one that accepts and says nothing, as a
// server does that is starting, is left for the next one.
func TestAClientLeavesAServerThatDoesNotGreet(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	server := testbed.ZooKeeper(t)
	const session = 10 * time.Second // for which the client alone waits 66 s
	conn, events, err := zk.Connect([]string{silent.Addr().String(), server.Addr()}, session,
		zk.WithLogger(quiet{}), zk.WithLogInfo(false), zk.WithDialer(Dialer(200*time.Millisecond)),
		zk.WithHostProvider(&inOrder{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		for range events {
		}
	}()
	testbed.Eventually(t, "a session", 30*time.Second, func() bool { return conn.State() == zk.StateHasSession })
}

// inOrder tries the servers as they are listed.
type inOrder struct {
	servers []string
	next    int
}

func (o *inOrder) Init(servers []string) error { o.servers = servers; return nil }
func (o *inOrder) Len() int                    { return len(o.servers) }
func (o *inOrder) Connected()                  {}
func (o *inOrder) Next() (string, bool) {
	o.next++
	return o.servers[(o.next-1)%len(o.servers)], false
}
