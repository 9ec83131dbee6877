package testbed

import (
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections to one address and breaks them on demand. Its methods may be called from any
// goroutine. They affect the next bytes to be forwarded.
type Proxy struct {
	target   string
	listener net.Listener
	owned    sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]bool
	faults faults
	closed bool
}

// faults are the current faults.
type faults struct {
	cut     bool
	replies bool // drop replies
	delay   time.Duration
	limited bool
	left    int // bytes of replies until a connection is closed, if limited
}

// NewProxy starts a proxy for target, "host:port". It ends with the test.
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

// Addr returns the address for clients of the target, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut drops all later bytes in both directions. Connections stay open and do not
// forward the other side's close; new ones are reset immediately.
func (p *Proxy) Cut() { p.change(func(f *faults) { f.cut = true }) }

// Abandon cuts so that the server sees the end of every connection, and the clients
// do not. It returns when the server has closed them.
func (p *Proxy) Abandon() {
	p.Cut()
	p.mu.Lock()
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	for _, l := range links {
		l.hangUp()
	}
}

// DropReplies forwards requests and drops all bytes of the replies, also on new
// connections. Clients do not see a close by the server.
func (p *Proxy) DropReplies() { p.change(func(f *faults) { f.replies = true }) }

// Delay delays each byte by d, in each direction; 0 ends that. It adds latency and
// does not reduce throughput.
func (p *Proxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// CutAfter forwards n more bytes of replies, over all connections together, and then
// closes the connection of the next byte, once.
func (p *Proxy) CutAfter(n int) {
	p.change(func(f *faults) { f.limited, f.left = true, n })
}

// Heal ends all faults and closes the connections that were open during a Cut or
// DropReplies, because bytes may be missing from them.
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

// Close ends all connections and goroutines. It may be called repeatedly.
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

// damage marks the connections whose bytes are being dropped.
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
			client.(*net.TCPConn).SetLinger(0) // a reset, as from a closed port
			l.close()
			continue
		}
		p.owned.Go(l.run)
	}
}

// admit registers a new connection, unless the proxy refuses it.
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

// verdict is the decision about some bytes or an end of stream.
type verdict struct {
	pass  int  // how many bytes to forward; the rest is dropped
	open  bool // the stream continues
	quiet bool // an end of stream is not forwarded
}

// judge decides about n bytes; 0 is an end of stream.
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
