package testbed

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// peer is the server of a proxy: it answers each line with the same line, and records
// what it received.
type peer struct {
	addr     string
	received chan string
	ended    chan struct{} // one for each connection whose end it noticed
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{l.Addr().String(), make(chan string, 100), make(chan struct{}, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn) // ends with the connection
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return p
}

func (p *peer) serve(conn net.Conn) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		p.received <- lines.Text()
		conn.Write([]byte(lines.Text() + "\n"))
	}
	p.ended <- struct{}{}
}

func (p *peer) expect(t *testing.T, line string) {
	t.Helper()
	if got := Receive(t, p.received, "a line at the server"); got != line {
		t.Fatalf("the server received %q, want %q", got, line)
	}
}

// behind returns a proxy for a peer, and one connection through it.
func behind(t *testing.T) (*Proxy, *peer, net.Conn) {
	t.Helper()
	server := newPeer(t)
	proxy := NewProxy(t, server.addr)
	return proxy, server, connect(t, proxy)
}

func connect(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func say(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	if _, err := conn.Write([]byte(line + "\n")); err != nil {
		t.Fatal(err)
	}
}

// hear reads exactly want.
func hear(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(bound))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("received %q (%v), want %q", got, err, want)
	}
}

// silence checks that nothing arrives and that the connection stays open.
func silence(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes, %v; want silence", n, err)
	}
}

// end checks that the connection ends without another byte.
func end(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(bound))
	n, err := conn.Read(make([]byte, 1))
	if n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes, %v; want the end of the connection", n, err)
	}
}

func TestProxyForwards(t *testing.T) {
	_, server, conn := behind(t)
	big := string(bytes.Repeat([]byte("x"), 60_000))
	for _, line := range []string{"a", big, "b"} {
		say(t, conn, line)
		server.expect(t, line)
		hear(t, conn, line+"\n")
	}
	conn.(*net.TCPConn).CloseWrite()
	end(t, conn)
}

func TestProxyTellsOfTheEnd(t *testing.T) {
	_, server, conn := behind(t)
	say(t, conn, "a")
	hear(t, conn, "a\n")
	conn.Close()
	Receive(t, server.ended, "the end at the server")
}

func TestProxyToNobody(t *testing.T) {
	port, err := takePort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.free()
	end(t, connect(t, NewProxy(t, port.addr())))
}

func TestProxyCutAndHeal(t *testing.T) {
	proxy, server, conn := behind(t)
	say(t, conn, "before")
	hear(t, conn, "before\n")
	server.expect(t, "before")
	proxy.Cut()
	say(t, conn, "lost")
	silence(t, conn)
	if refused, err := net.Dial("tcp", proxy.Addr()); err == nil { // or the reset arrives earlier
		end(t, refused)
		refused.Close()
	}
	if n := len(server.received) + len(server.ended); n > 0 {
		t.Fatalf("%d things passed a cut", n)
	}
	proxy.Heal()
	end(t, conn)
	again := connect(t, proxy)
	say(t, again, "after")
	hear(t, again, "after\n")
	server.expect(t, "after")
}

func TestProxyCutHidesTheEnd(t *testing.T) {
	proxy, server, conn := behind(t)
	say(t, conn, "a")
	hear(t, conn, "a\n")
	proxy.Cut()
	conn.Close()
	select {
	case <-server.ended:
		t.Fatal("the server learned of the end through a cut")
	case <-time.After(50 * time.Millisecond):
	}
	proxy.Heal()
	Receive(t, server.ended, "the end of what was cut, at the server")
}

func TestProxyAbandonsTheServer(t *testing.T) {
	proxy, server, conn := behind(t)
	say(t, conn, "a")
	hear(t, conn, "a\n")
	proxy.Abandon()
	Receive(t, server.ended, "the end at the server")
	say(t, conn, "lost")
	silence(t, conn)
	proxy.Heal()
	end(t, conn)
}

func TestProxyDropsReplies(t *testing.T) {
	proxy, server, conn := behind(t)
	proxy.DropReplies()
	for _, c := range []net.Conn{conn, connect(t, proxy)} {
		say(t, c, "request")
		server.expect(t, "request")
		silence(t, c)
	}
	proxy.Heal()
	end(t, conn)
	again := connect(t, proxy)
	say(t, again, "after")
	hear(t, again, "after\n")
}

func TestProxyCutsAfterSoManyBytes(t *testing.T) {
	for n, want := range []string{"", "a", "ab", "ab\n"} {
		proxy, server, conn := behind(t)
		proxy.CutAfter(n)
		say(t, conn, "ab")
		server.expect(t, "ab")
		hear(t, conn, want)
		if n == len("ab\n") {
			say(t, conn, "c")
		}
		end(t, conn)
		again := connect(t, proxy) // once only
		say(t, again, "after")
		hear(t, again, "after\n")
	}
}

func TestProxyDelays(t *testing.T) {
	proxy, _, conn := behind(t)
	say(t, conn, "a")
	hear(t, conn, "a\n")
	const d = 50 * time.Millisecond
	proxy.Delay(d)
	before := time.Now()
	for range 20 {
		say(t, conn, "b")
	}
	hear(t, conn, "b\n")
	if took := time.Since(before); took < 2*d {
		t.Errorf("the round trip took %v, want at least %v", took, 2*d)
	}
	for range 19 {
		hear(t, conn, "b\n")
	}
	if took := time.Since(before); took > 20*d {
		t.Errorf("20 lines took %v: the delay slows down the stream", took)
	}
	proxy.Heal()
	say(t, conn, "c") // nothing was lost, so the connection continues
	hear(t, conn, "c\n")
}

func TestProxyCutDropsWhatIsUnderWay(t *testing.T) {
	for delay := 100 * time.Millisecond; ; delay *= 2 {
		proxy, server, conn := behind(t)
		proxy.Delay(delay)
		said := time.Now()
		say(t, conn, "late")
		proxy.Cut()
		if time.Since(said) > delay { // it may have passed before the cut, on a busy machine
			continue
		}
		select {
		case line := <-server.received:
			t.Fatalf("%q passed a cut", line)
		case <-time.After(2 * delay):
		}
		return
	}
}

func TestClosedProxyLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	server := newPeer(t)
	now := goleak.IgnoreCurrent()
	proxy := NewProxy(t, server.addr)
	for _, fault := range []func(){func() {}, proxy.DropReplies, func() { proxy.Delay(time.Hour) }, proxy.Cut} {
		conn := connect(t, proxy)
		say(t, conn, "a")
		fault()
		say(t, conn, "b")
		conn.(*net.TCPConn).CloseWrite()
	}
	proxy.Close()
	proxy.Close()
	Eventually(t, "no goroutine of the proxy", bound, func() bool { return goleak.Find(now, before) == nil })
}
