package testbed

import (
	"net"
	"sync"
	"time"
)

// link is one connection through a proxy.
type link struct {
	proxy   *Proxy
	target  string
	client  net.Conn
	damaged bool // guarded by proxy.mu

	mu     sync.Mutex
	server net.Conn // nil until connected
	gone   chan struct{}
	once   sync.Once
	ended  chan struct{} // the server has ended its stream
}

// chunk is bytes in transit, or the end of the stream if it is empty.
type chunk struct {
	bytes []byte
	due   time.Time
}

func (l *link) run() {
	defer l.proxy.forget(l)
	defer l.close()
	server, err := net.DialTimeout("tcp", l.target, bound)
	if err != nil || !l.connected(server) {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { l.carry(server, l.client, false) })
	directions.Go(func() { l.carry(l.client, server, true) })
	directions.Wait()
}

// connected stores the connection to the server, unless the link has been closed
// meanwhile.
func (l *link) connected(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gone:
		server.Close()
		return false
	default:
		l.server = server
		return true
	}
}

// carry forwards one direction until its end. It reads ahead of writing, so that a
// delay adds latency and does not reduce throughput.
func (l *link) carry(to, from net.Conn, answer bool) {
	chunks := make(chan chunk, 256)
	var reader sync.WaitGroup
	reader.Go(func() {
		l.read(from, chunks)
		if answer {
			close(l.ended)
		}
	})
	defer reader.Wait()
	for {
		select {
		case c := <-chunks:
			if !l.deliver(to, c, answer) {
				return
			}
		case <-l.gone:
			return
		}
	}
}

func (l *link) read(from net.Conn, chunks chan<- chunk) {
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		due := time.Now().Add(l.proxy.delay())
		if n > 0 && !l.hand(chunks, chunk{buffer[:n], due}) {
			return
		}
		if err != nil {
			l.hand(chunks, chunk{nil, due})
			return
		}
	}
}

func (l *link) hand(chunks chan<- chunk, c chunk) bool {
	select {
	case chunks <- c:
		return true
	case <-l.gone:
		return false
	}
}

// deliver writes a chunk when it is due and reports whether the direction
// continues.
func (l *link) deliver(to net.Conn, c chunk, answer bool) bool {
	if !l.until(c.due) {
		return false
	}
	v := l.proxy.judge(answer, len(c.bytes))
	if !l.write(to, c.bytes[:v.pass]) || !v.open {
		l.close()
		return false
	}
	if len(c.bytes) > 0 {
		return true
	}
	if v.quiet {
		<-l.gone // the other side must not see the end before the link is healed
		return false
	}
	to.(*net.TCPConn).CloseWrite()
	return false
}

// write skips an empty write, which fails after hangUp.
func (l *link) write(to net.Conn, bytes []byte) bool {
	if len(bytes) == 0 {
		return true
	}
	_, err := to.Write(bytes)
	return err == nil
}

// hangUp ends the stream to the server and waits until the server ends its own.
func (l *link) hangUp() {
	l.mu.Lock()
	server := l.server
	l.mu.Unlock()
	if server == nil {
		return
	}
	server.(*net.TCPConn).CloseWrite()
	select {
	case <-l.ended:
	case <-time.After(bound):
	}
}

func (l *link) until(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.gone:
		return false
	}
}

// close closes both connections after pending writes. It may be called repeatedly,
// and while holding the proxy's lock.
func (l *link) close() {
	l.once.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.gone)
		for _, conn := range []net.Conn{l.client, l.server} {
			if conn != nil {
				conn.Close()
			}
		}
	})
}
