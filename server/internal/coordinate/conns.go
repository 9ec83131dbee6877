package coordinate

import (
	"net"
	"net/netip"
	"sync"
)

// capped is a listener that limits the open connections, in total and per address, and
// closes further ones.
type capped struct {
	net.Listener
	total, each int

	mu   sync.Mutex
	open map[netip.Addr]int
	sum  int
}

func newCapped(l net.Listener, total, each int) *capped {
	return &capped{Listener: l, total: total, each: each, open: map[netip.Addr]int{}}
}

// Accept waits for the next connection within the limits.
func (c *capped) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := address(conn)
		if c.enter(from) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { c.leave(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (c *capped) enter(from netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sum >= c.total || c.open[from] >= c.each {
		return false
	}
	c.sum++
	c.open[from]++
	return true
}

func (c *capped) leave(from netip.Addr) {
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

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close closes the connection and ends its count.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
