package testbed

import (
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards TCP connections to one address, and breaks them on demand. Its methods may be called from any
// goroutine, and take effect on the next bytes that are to be passed on.
type Proxy struct {
	target   string
	listener net.Listener
	owned    sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]bool
	faults faults
	closed bool
}

// faults is what is broken at the moment.
type faults struct {
	cut     bool
	replies bool // drop them
	delay   time.Duration
	limited bool
	left    int // bytes of answers until a connection is closed, if limited
}

// NewProxy starts a proxy in front of target, "host:port". It ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy to %s: %v", target, err)
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]bool{}}
	tb.Cleanup(p.Close)
	p.owned.Go(p.accept)
	return p
}

// Addr is where clients connect to reach the target, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut drops every byte in both directions from now on. Connections stay open,
// and do not notice that the other side closes; new ones are reset at once.
func (p *Proxy) Cut() { p.change(func(f *faults) { f.cut = true }) }

// Abandon is a Cut that the server notices: it sees the end of every connection,
// and the clients see nothing. Abandon returns when the server has closed them.
func (p *Proxy) Abandon() {
	p.Cut()
	p.mu.Lock()
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	for _, l := range links {
		l.hangUp()
	}
}

// DropReplies lets requests through and drops every byte of the answers, also
// on new connections. A server that closes is not noticed.
func (p *Proxy) DropReplies() { p.change(func(f *faults) { f.replies = true }) }

// Delay holds back every byte by d, in each direction; 0 ends that. It adds to
// the time a byte takes and does not slow down the stream.
func (p *Proxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// CutAfter lets n more bytes of answers pass, over all connections together,
// and then closes the connection on which the next one comes. That happens
// once.
func (p *Proxy) CutAfter(n int) {
	p.change(func(f *faults) { f.limited, f.left = true, n })
}

// Heal ends every fault and closes the connections that were open during a Cut
// or DropReplies, since bytes may be missing from them.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.faults = faults{}
	for l := range p.links {
		if l.damaged {
			l.close()
		}
	}
	p.mu.Unlock()
}

// Close ends all connections and goroutines. It may be repeated.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.listener.Close()
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.owned.Wait()
}

func (p *Proxy) change(set func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set(&p.faults)
	p.damage()
}

// damage marks the connections from which bytes are being dropped.
func (p *Proxy) damage() {
	if !p.faults.cut && !p.faults.replies {
		return
	}
	for l := range p.links {
		l.damaged = true
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		l := &link{proxy: p, target: p.target, client: client, gone: make(chan struct{}), ended: make(chan struct{})}
		if !p.admit(l) {
			client.(*net.TCPConn).SetLinger(0) // a reset, as from a port nobody listens on
			l.close()
			continue
		}
		p.owned.Go(l.run)
	}
}

// admit registers a new connection, unless none is wanted.
func (p *Proxy) admit(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.faults.cut {
		return false
	}
	p.links[l] = true
	p.damage()
	return true
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.delay
}

// A verdict says what to do with some bytes, or with an end of stream.
type verdict struct {
	pass  int  // how many bytes to pass on; the rest is dropped
	open  bool // the stream goes on
	quiet bool // an end of stream is not passed on
}

// judge decides about n bytes; of an end of stream, n is 0.
func (p *Proxy) judge(answer bool, n int) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.faults
	if f.cut || answer && f.replies {
		return verdict{open: true, quiet: true}
	}
	if !answer || !f.limited {
		return verdict{pass: n, open: true}
	}
	pass := min(n, f.left)
	f.left -= pass
	f.limited = pass == n
	return verdict{pass: pass, open: pass == n}
}
