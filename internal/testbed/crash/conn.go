package crash

import (
	"context"
	"net"
)

// Wire is a network on which every request has two points, before and after it is sent.
// At the second the answer has not been read. The zero value has none until Watch.
type Wire struct{ at *Points }

// Watch starts counting, also on open connections. It is not safe for use while a
// request is being sent.
func (w *Wire) Watch(at *Points) { w.at = at }

// Dial opens a connection that counts its requests.
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
