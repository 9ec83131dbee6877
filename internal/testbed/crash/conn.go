package crash

import (
	"context"
	"net"
)

// Wire is a network on which every request is two points, before it is sent and after:
// the second is where its answer was not read. The zero value has none until Watch.
type Wire struct{ at *Points }

// Watch begins to count. What was opened before is counted too, from here on. It is not
// safe for use while something is sent.
func (w *Wire) Watch(at *Points) { w.at = at }

// Dial opens a connection of the wire.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wired{conn, w}, nil
}

type wired struct {
	net.Conn
	wire *Wire
}

func (c *wired) Write(b []byte) (int, error) {
	c.wire.at.Pass()
	n, err := c.Conn.Write(b)
	c.wire.at.Pass()
	return n, err
}
