package zookeeper

import (
	"context"
	"encoding/binary"
	"io"
	"net"
)

// tap is a connection to a server whose packets a test sees.
type tap struct {
	net.Conn
	// received receives each packet of the server without its length, first the greeting. It
	// may change the packet; false drops it. Nil passes all packets.
	received func(packet []byte, greeting bool) bool
	// sending receives the operation of each packet of the client, and the rest of it; may be nil.
	sending func(op uint32, body []byte)
	rest    []byte
	greeted bool
}

func (c *tap) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		if c.received == nil || c.received(body, !c.greeted) {
			c.rest = append(head, body...)
		}
		c.greeted = true
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write is called with whole packets: length, number and operation.
func (c *tap) Write(p []byte) (int, error) {
	if c.sending != nil && len(p) >= 12 {
		c.sending(binary.BigEndian.Uint32(p[8:]), p[12:])
	}
	return c.Conn.Write(p)
}

// tapped returns a dialer for [Options.Dial]. begin returns the tap of each new connection.
func tapped(begin func() *tap) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := begin()
		c.Conn = conn
		return c, nil
	}
}
