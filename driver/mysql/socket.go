package mysql

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// socket is the connection of a session. A goroutine reads ahead, to detect at once that the server
// has closed the connection. It also reads the connection's number from the server's handshake, before
// any encryption. The connection can stay open when the client closes it.
type socket struct {
	net.Conn
	over func() // called once, when reading has ended

	mu    sync.Mutex
	come  *sync.Cond
	data  bytes.Buffer
	err   error  // why reading has ended
	hello []byte // the first bytes, until the number is known
	id    uint32 // 0 until it is known
	left  bool
}

// sockets dials a socket, whose goroutine is counted in all.
type sockets struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	all  *sync.WaitGroup
	over func()
	last *socket
}

func (d *sockets) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := d.dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 10 * time.Second}).DialContext
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: conn, over: d.over}
	s.come = sync.NewCond(&s.mu)
	d.last = s
	d.all.Go(s.readAhead)
	return s, nil
}

func (s *socket) readAhead() {
	chunk := make([]byte, 4<<10)
	for {
		n, err := s.Conn.Read(chunk)
		s.mu.Lock()
		s.data.Write(chunk[:n])
		if s.id == 0 && len(s.hello) < 256 {
			s.hello = append(s.hello, chunk[:n]...)
			s.id = connectionID(s.hello)
		}
		s.err = err
		s.come.Broadcast()
		s.mu.Unlock()
		if err != nil {
			s.over()
			return
		}
	}
}

// Read blocks until there is data, or until Close.
func (s *socket) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.data.Len() == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.come.Wait()
	}
	return s.data.Read(b)
}

// ended reports whether the server has closed the connection.
func (s *socket) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// connectionID reads the number in a handshake of version 10: after the head of the packet, the
// version and a text that ends with a zero. It returns 0 if the number is missing.
func connectionID(hello []byte) uint32 {
	const head = 4
	if len(hello) <= head || hello[head] != 10 {
		return 0
	}
	text := hello[head+1:]
	end := bytes.IndexByte(text, 0)
	if end < 0 || len(text) < end+5 {
		return 0
	}
	return binary.LittleEndian.Uint32(text[end+1:])
}

// number returns the server's number of the connection.
func (s *socket) number() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// leave hides the client's Close, and all it writes, from the server, and closes the connection
// after d.
func (s *socket) leave(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	time.AfterFunc(d, func() { s.Conn.Close() })
}

func (s *socket) isLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

func (s *socket) Write(b []byte) (int, error) {
	if s.isLeft() {
		return len(b), nil
	}
	return s.Conn.Write(b)
}

// Close ends the goroutine, and the connection unless it was left.
func (s *socket) Close() error {
	if s.isLeft() {
		return s.Conn.SetReadDeadline(time.Unix(1, 0))
	}
	return s.Conn.Close()
}
