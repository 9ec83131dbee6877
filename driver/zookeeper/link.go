package zookeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// link connects a session's client to the servers. It reads the length of the session from the
// server's greeting, which the client does not expose, and can be closed permanently. It is
// the client's zk.HostProvider and zk.Dialer.
type link struct {
	ctx  context.Context // ends with the session
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// patience bounds the wait for the greeting; the client alone waits for several
	// times the length of the session.
	patience time.Duration

	mu      sync.Mutex
	servers []string
	next    int
	failed  int // servers tried since the last that was reached
	conn    *wire
	granted time.Duration
	cut     bool
}

var (
	_ zk.HostProvider = (*link)(nil)

	errCut = errors.New("the session has ended")
)

// Init implements zk.HostProvider.
func (l *link) Init(servers []string) error {
	l.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (l *link) Len() int { return len(l.servers) }

// Next implements zk.HostProvider. If retryStart is true, the client pauses for a second, and
// fails the requests that it has not sent. It is true when every server has failed: a broken
// connection is replaced at once.
func (l *link) Next() (server string, retryStart bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server = l.servers[l.next]
	l.next = (l.next + 1) % len(l.servers)
	if retryStart = l.cut || l.failed >= len(l.servers); retryStart {
		l.failed = 0
	}
	l.failed++
	return server, retryStart
}

// Connected implements zk.HostProvider.
func (l *link) Connected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = 0
}

// connect dials a server; it is the client's zk.Dialer.
func (l *link) connect(network, addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	raw, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		raw.Close()
		return nil, errCut
	}
	if l.conn != nil {
		l.conn.Close() // the client does not close it when a session has expired
	}
	l.conn = &wire{Conn: raw, link: l, buffer: bufio.NewReader(raw)}
	return l.conn, nil
}

// reset closes the connection, so that the client opens another.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
	}
}

// closeForGood closes the connection and permits no other. No later request reaches the
// servers, not even the end of the session.
func (l *link) closeForGood() {
	l.mu.Lock()
	l.cut = true
	l.mu.Unlock()
	l.reset()
}

// length returns how long the server keeps the session without a request.
func (l *link) length() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.granted
}

// wire is one connection.
type wire struct {
	net.Conn
	link     *link
	buffer   *bufio.Reader // the client reads the length of each answer by itself
	greeting [12]byte      // its length, the version of the protocol, milliseconds
	heard    int
}

// Read parses the greeting, the first message of a server.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.buffer.Read(p)
	if w.heard < len(w.greeting) && n > 0 {
		w.heard += copy(w.greeting[w.heard:], p[:n])
		if w.heard == len(w.greeting) {
			w.link.mu.Lock()
			w.link.granted = time.Duration(binary.BigEndian.Uint32(w.greeting[8:])) * time.Millisecond
			w.link.mu.Unlock()
		}
	}
	return n, err
}

// SetReadDeadline bounds the wait for the greeting.
func (w *wire) SetReadDeadline(t time.Time) error {
	if w.heard == 0 && !t.IsZero() {
		if soon := time.Now().Add(w.link.patience); t.After(soon) {
			t = soon
		}
	}
	return w.Conn.SetReadDeadline(t)
}

// quiet drops the client's log: errors and events report everything.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
