package coordinate

import (
	"net"
	"net/netip"
	"sync"
)

// limitedListener is a listener that limits the open connections, in total and per address, and
// closes further ones.
type limitedListener struct {
	net.Listener
	total, each int

	mu   sync.Mutex
	open map[netip.Addr]int
	sum  int
}

func newLimitedListener(l net.Listener, total, each int) *limitedListener {
	return &limitedListener{Listener: l, total: total, each: each, open: map[netip.Addr]int{}}
}

// Accept waits for the next connection within the limits.
func (c *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := address(conn)
		if c.admit(from) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { c.release(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (c *limitedListener) admit(from netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sum >= c.total || c.open[from] >= c.each {
		return false
	}
	c.sum++
	c.open[from]++
	return true
}

func (c *limitedListener) release(from netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum--
	if c.open[from]--; c.open[from] == 0 {
		delete(c.open, from)
	}
}

// address identifies the client of a connection. For IPv6 it is the network, since one machine may
// use all addresses of it.
func address(conn net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if net, err := ip.Prefix(64); err == nil {
			return net.Addr()
		}
	}
	return ip
}

// limitedConn is a connection that counts until it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close closes the connection and ends its count.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
