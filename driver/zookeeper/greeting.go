package zookeeper

import (
	"net"
	"time"

	"github.com/go-zookeeper/zk"
)

// Dialer is for a client of the user's own, such as that of [NewValues]: with
// zk.WithDialer it bounds by patience how long the client waits for the greeting of
// a server. The client alone waits for almost seven times the length of its session
// for a server that accepts connections and does not answer yet, and sends nothing
// meanwhile; it then tries the next server, or the same again.
func Dialer(patience time.Duration) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, address, timeout)
		if err != nil {
			return nil, err
		}
		return &greeted{Conn: c, patience: patience}, nil
	}
}

// greeted is a connection whose first answer does not take longer than patience.
type greeted struct {
	net.Conn
	patience time.Duration
	heard    bool
}

// Read notes that something was heard. The client reads in one goroutine.
func (g *greeted) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.heard = g.heard || n > 0
	return n, err
}

// SetReadDeadline bounds the wait for the greeting.
func (g *greeted) SetReadDeadline(t time.Time) error {
	if soon := time.Now().Add(g.patience); !g.heard && t.After(soon) {
		t = soon
	}
	return g.Conn.SetReadDeadline(t)
}
