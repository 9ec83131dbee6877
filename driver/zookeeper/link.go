package zookeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// link connects a session's client to the servers. It reads the length of the session from the
// server's greeting, which the client does not expose, keeps the last transaction that a server
// showed, and can be closed permanently. It is the client's zk.HostProvider and zk.Dialer.
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
	seen    int64 // the last transaction that an answer showed
	watched int64 // a transaction up to which no event of a watch was missed
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
	if l.conn != nil {
		l.conn.Close() // the client does not close it when a session has expired
		if l.conn.watching {
			l.watched = l.seen
		}
	}
	l.conn = &wire{greeted: greeted{Conn: raw, patience: l.patience}, link: l, server: addr,
		buffer: bufio.NewReader(raw), watching: l.conn == nil}
	return l.conn, nil
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

// wire is one connection. It conceals the transactions of answers from the client, and writes them into
// its requests. The client would write and read its last transaction in two goroutines without a lock;
// and it would set its watches as of an answer that was quicker, and miss what happened between
// two connections.
type wire struct {
	greeted
	link   *link
	server string
	buffer *bufio.Reader // the client reads the length of each message by itself
	read   int           // bytes of the present message that the client has read
	length int           // bytes of the present message; 0 before the greeting
	answer bool          // the present message is not the greeting
	opened bool          // the client has sent its first request

	// link.mu
	setting  uint32 // the number of the last request that sets watches; 0 if another may follow
	watching bool   // the client's watches are set; over the first connection it has none before
}

// part is a size of requests that set watches: another one may follow. The client begins another after 128 KiB.
const part = 64 << 10

// Write is called with whole requests: their length, number and operation. The first one, which opens
// the session, has a version, the last transaction, a time and the session instead.
func (w *wire) Write(p []byte) (int, error) {
	const setWatches = 101
	switch {
	case !w.opened:
		w.opened = true
		p = slices.Clone(p)
		w.link.mu.Lock()
		if binary.BigEndian.Uint64(p[20:]) == 0 { // a new session
			w.link.seen, w.link.watched = 0, 0
		}
		binary.BigEndian.PutUint64(p[8:], uint64(w.link.seen))
		w.link.mu.Unlock()
	case binary.BigEndian.Uint32(p[8:]) == setWatches:
		p = slices.Clone(p)
		w.link.mu.Lock()
		if w.setting, w.watching = binary.BigEndian.Uint32(p[4:]), false; len(p) >= part {
			w.setting = 0
		}
		binary.BigEndian.PutUint64(p[12:], uint64(w.link.watched))
		w.link.mu.Unlock()
	}
	return w.Conn.Write(p)
}

// Read returns what the server sends, with 0 for the transactions of answers.
func (w *wire) Read(p []byte) (int, error) {
	if w.read == w.length {
		head, err := w.buffer.Peek(20) // the length, and the number, transaction and error of an answer
		w.heard = w.heard || len(head) > 0
		w.note(head, err)
		if err != nil {
			return 0, err
		}
	}
	n, err := w.buffer.Read(p[:min(len(p), w.length-w.read)])
	if w.answer {
		clear(p[min(n, max(0, 8-w.read)):min(n, max(0, 16-w.read))])
	}
	w.read += n
	return n, err
}

// note notes the next message, or that there is none. The greeting has a version and its milliseconds where
// others have their number and transaction.
func (w *wire) note(head []byte, err error) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	if w.link.noteSilence(w.server, err); err != nil {
		return
	}
	w.answer = w.length > 0
	w.read, w.length = 0, 4+int(binary.BigEndian.Uint32(head))
	if !w.answer {
		w.link.granted = time.Duration(binary.BigEndian.Uint32(head[8:])) * time.Millisecond
		return
	}
	number, transaction := binary.BigEndian.Uint32(head[4:]), int64(binary.BigEndian.Uint64(head[8:]))
	if int32(number) > 0 && transaction > 0 { // neither an event nor the answer to a ping
		w.link.seen = transaction
	}
	if number == w.setting && binary.BigEndian.Uint32(head[16:]) == 0 {
		w.watching = true
	}
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
