package mysql

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// socket is the connection of a session, read ahead by a goroutine of its own:
// so it is known at once when the server closes it, and not only when something
// is asked. It also reads the number that the server gives to the connection when
// it speaks first, before any encryption, and can be left open when the client
// closes it.
type socket struct {
	net.Conn
	over func() // called once, when nothing more will come

	mu    sync.Mutex
	come  *sync.Cond
	data  bytes.Buffer
	err   error  // why nothing more will come
	hello []byte // the beginning of what came, until the number is known
	id    uint32 // 0 while it is not known
	left  bool
}

// sockets dials one, whose goroutine all waits for.
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

// Read waits for what comes. Close ends that.
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

// connectionID reads the number in a handshake of version 10: behind the head of
// the packet, the version and a text that ends with a zero. 0 if there is none.
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

// number is the number that the server gave the connection.
func (s *socket) number() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// leave makes the client's Close, and what it writes with it, not reach the
// server, and closes the connection after d.
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
