package zookeeper

import (
	"context"
	"net"
	"time"

	"github.com/go-zookeeper/zk"
)

// Dialer returns a dialer for zk.WithDialer that bounds by patience how long a client waits for a
// server's greeting. Then the client tries the next server, or the same again. It is for your own
// clients, such as that of [NewValues]. Without it, a client waits almost seven times its session's
// length for a server that accepts connections but does not answer, and sends nothing meanwhile.
//
// dial connects to a server; nil means plain TCP. For TLS pass the DialContext of a tls.Dialer. If
// certificates are checked for the names of servers, also pass the client a zk.HostProvider that
// does not resolve them: see [Hosts].
func Dialer(patience time.Duration, dial func(ctx context.Context, network, addr string) (net.Conn, error)) zk.Dialer {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &greeted{Conn: c, patience: patience}, nil
	}
}

// greeted is a connection whose first answer must come within patience.
type greeted struct {
	net.Conn
	patience time.Duration
	heard    bool
}

// Read records the first answer. The client reads in one goroutine.
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

// Hosts returns a host provider that offers the servers in order, by their given names,
// for which TLS checks certificates. The client's own provider, zk.NewDNSHostProvider,
// resolves names once.
func Hosts() zk.HostProvider { return new(link) }
