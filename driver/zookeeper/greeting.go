package zookeeper

import (
	"context"
	"net"
	"time"

	"github.com/go-zookeeper/zk"
)

// Dialer is for a client of the user's own, such as that of [NewValues]: with
// zk.WithDialer it bounds by patience how long the client waits for the greeting of
// a server. The client then tries the next server, or the same again. By itself it
// waits for almost seven times the length of its session for a server that accepts
// connections and does not answer yet, and sends nothing meanwhile.
//
// dial connects to a server; nil means plain TCP. For TLS pass the DialContext of a
// tls.Dialer, and to the client a zk.HostProvider that does not resolve the names of
// servers, if certificates are checked for them: see [Hosts].
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

// Hosts is a host provider for the client: it offers the servers in order, by the names
// that they were given, as TLS checks certificates for them. zk.NewDNSHostProvider, the
// client's own, resolves names once.
func Hosts() zk.HostProvider { return new(link) }
