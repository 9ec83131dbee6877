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
	ctx  context.Context // ends with the driver
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// patience bounds the wait for the greeting; the client alone waits for several
	// times the length of the session.
	patience time.Duration

	mu      sync.Mutex
	servers []string
	silent  map[string]time.Time // when a server did not answer; others are tried first
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
	l.servers, l.silent = servers, map[string]time.Time{}
	return nil
}

// Len implements zk.HostProvider.
func (l *link) Len() int { return len(l.servers) }

// Next implements zk.HostProvider. If retryStart is true, the client pauses for a second, fails
// the requests that it has not sent, and ends if it is closed. It is true when every server has
// failed: a broken connection is replaced at once.
func (l *link) Next() (server string, retryStart bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range l.servers {
		server = l.servers[l.next]
		l.next = (l.next + 1) % len(l.servers)
		if time.Since(l.silent[server]) >= 3*l.patience {
			break
		}
	}
	if retryStart = l.cut || l.ctx.Err() != nil || l.failed >= len(l.servers); retryStart {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.noteSilence(addr, err)
		return nil, err
	}
	if l.cut {
		raw.Close()
		return nil, errCut
	}
	w := &wire{greeted: greeted{Conn: raw, patience: l.patience}, link: l, server: addr, buffer: bufio.NewReader(raw)}
	if l.conn != nil {
		l.conn.Close() // the client does not close it when a session has expired
		w.watches = make(chan struct{})
	}
	l.conn = w
	return w, nil
}

// noteSilence records that a connection to a server failed, if it did because there was no
// answer. The mutex is held.
func (l *link) noteSilence(server string, err error) {
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
		l.silent[server] = time.Now()
	}
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
	greeted
	link     *link
	server   string
	buffer   *bufio.Reader // the client reads the length of each answer by itself
	greeting [12]byte      // its length, the version of the protocol, milliseconds
	known    int           // bytes of the greeting
	read     int           // bytes in all
	// watches is closed when the client sets its watches again; nil over the first connection.
	watches chan struct{}
	set     sync.Once
	settled bool // nothing is held back any more
}

// settling bounds how long answers over another connection are held back until the client sets its
// watches again. It does not, if it has none.
const settling = 20 * time.Millisecond

// Write notes that the client sets its watches. It is called with whole requests: their length,
// number and operation. The first one, which opens the session, has no number.
func (w *wire) Write(p []byte) (int, error) {
	const setWatches = 101
	if w.watches != nil && len(p) >= 12 && binary.BigEndian.Uint32(p[4:]) != 0 && binary.BigEndian.Uint32(p[8:]) == setWatches {
		w.set.Do(func() { close(w.watches) })
	}
	return w.Conn.Write(p)
}

// settle holds back what follows the greeting of another connection. To set its watches, the client
// reads its last transaction id without a lock: after an answer to a request that it had queued,
// it could miss events of the interruption.
func (w *wire) settle() {
	if w.settled || w.known < len(w.greeting) || w.read < 4+int(binary.BigEndian.Uint32(w.greeting[:])) {
		return
	}
	if w.settled = true; w.watches == nil {
		return
	}
	bound := time.NewTimer(settling)
	defer bound.Stop()
	select {
	case <-w.watches:
	case <-bound.C:
	}
}

// Read parses the greeting, the first message of a server.
func (w *wire) Read(p []byte) (int, error) {
	w.settle()
	n, err := w.buffer.Read(p)
	w.read += n
	w.heard = w.heard || n > 0
	if w.known == len(w.greeting) {
		return n, err
	}
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	w.known += copy(w.greeting[w.known:], p[:n])
	if w.known == len(w.greeting) {
		w.link.granted = time.Duration(binary.BigEndian.Uint32(w.greeting[8:])) * time.Millisecond
	}
	w.link.noteSilence(w.server, err)
	return n, err
}

// quiet drops the client's log: errors and events report everything.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

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
func Hosts() zk.HostProvider { return &link{ctx: context.Background()} }
