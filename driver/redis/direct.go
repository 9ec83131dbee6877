package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const (
	// directAfter is how many requests must be alone within directIdle before the connection
	// for them opens. It closes when it is unused for that time, up to twice as long.
	directAfter = 8
	directIdle  = time.Second
)

// direct is the second connection of a client, for requests that are alone. Their callers
// write and read there themselves: the client's own connection passes a request to a
// goroutine that writes, and its answer through one that reads.
//
// Only the goroutine that has raised link.inFlight from 0 to 1 uses it, until it lowers
// inFlight again.
type direct struct {
	link   *link
	option rueidis.ClientOption
	dial   dialer
	ctx    context.Context // ends with the client
	cancel context.CancelFunc

	line  atomic.Pointer[line]
	since time.Time // from when alone counts
	alone int       // requests without a connection

	mu      sync.Mutex // guards what follows, and line.idle
	opening bool
	opens   sync.WaitGroup
}

type dialer func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// newDirect returns nil if the client may connect to several servers, or for a limited time.
func newDirect(l *link, option rueidis.ClientOption, dial dialer) *direct {
	s := option.Standalone
	if len(option.InitAddress) != 1 || option.Sentinel.MasterSet != "" || s.EnableRedirect || len(s.ReplicaAddress) > 0 || option.ConnLifetime > 0 {
		return nil
	}
	d := &direct{link: l, option: option, dial: dial}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.option.ForceSingleClient = true
	// With any of these the client reads in a goroutine. KeepAlive is for its pings, too.
	d.option.AlwaysPipelining, d.option.OnInvalidations, d.option.Dialer.KeepAlive = false, nil, -1
	d.option.RingScaleEachConn, d.option.ReadBufferEachConn, d.option.WriteBufferEachConn = 1, 1<<12, 1<<12
	return d
}

// patience is how long a request on a line may outlast the cancellation of its ctx. Most
// requests are answered earlier, and need no [context.AfterFunc].
const patience = 5 * time.Millisecond

// line is one connection of direct.
type line struct {
	net.Conn
	client rueidis.Client
	breaks int64       // link.breaks when it was opened
	used   bool        // since idle was set
	idle   *time.Timer // guarded by direct.mu
	detach func() bool // from direct.ctx

	ctx         context.Context // of the latest request
	until       time.Time       // when the client gives it up
	interrupted atomic.Bool     // by the end of ctx
}

// take returns the connection, or nil if it is not open or was opened before the client's
// connection broke.
func (d *direct) take(ctx context.Context) *line {
	if d == nil {
		return nil
	}
	breaks := d.link.breaks.Load()
	l := d.line.Load()
	switch {
	case l == nil:
		d.wish(breaks)
		return nil
	case l.breaks != breaks:
		d.drop(l)
		l.close()
		return nil
	}
	l.used, l.ctx = true, ctx
	return l
}

// wish opens the connection if enough requests were alone.
func (d *direct) wish(breaks int64) {
	now := time.Now()
	if now.Sub(d.since) > directIdle {
		d.since, d.alone = now, 0
	}
	if d.alone++; d.alone != directAfter {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opening && d.ctx.Err() == nil {
		d.opening = true
		d.opens.Go(func() { d.open(breaks) })
	}
}

func (d *direct) open(breaks int64) {
	l := &line{breaks: breaks, ctx: d.ctx}
	client, err := d.connect(d.ctx, func(c net.Conn, detach func() bool) net.Conn {
		l.Conn, l.detach = c, detach
		return l
	})
	l.client = client
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opening = false
	if err != nil || d.ctx.Err() != nil || remote(l) != d.link.server.Load() {
		l.close()
		return
	}
	l.idle = time.AfterFunc(directIdle, func() { d.expire(l) })
	d.line.Store(l)
}

// connect returns a client of one connection, which is closed when ctx ends, unless it is detached.
// opened gets the connection, and returns what the client uses. No request waits for a second dial.
func (d *direct) connect(ctx context.Context, opened func(c net.Conn, detach func() bool) net.Conn) (rueidis.Client, error) {
	option, dialed := d.option, false
	option.DialCtxFn = func(_ context.Context, to string, n *net.Dialer, t *tls.Config) (net.Conn, error) {
		if dialed {
			return nil, net.ErrClosed
		}
		c, err := d.dial(ctx, to, n, t)
		if err != nil {
			return nil, err
		}
		dialed = true
		return opened(c, context.AfterFunc(ctx, func() { _ = c.Close() })), nil
	}
	return rueidis.NewClient(option)
}

// expire closes the connection if it is unused.
func (d *direct) expire(l *line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.link.inFlight.CompareAndSwap(0, 1) {
		l.idle.Reset(directIdle)
		return
	}
	defer d.link.inFlight.Add(-1)
	if l.used {
		l.used = false
		l.idle.Reset(directIdle)
	} else if d.drop(l) {
		l.close()
	}
}

// drop ends the use of a connection; it returns false if that was done before.
func (d *direct) drop(l *line) bool { return d.line.CompareAndSwap(l, nil) }

// close ends all goroutines and connections.
func (d *direct) close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
	d.opens.Wait()
	if l := d.line.Swap(nil); l != nil {
		l.close()
	}
}

// SetDeadline begins a request. Its bytes fit into the connection's empty buffer, so
// that only reading can block.
func (l *line) SetDeadline(t time.Time) error {
	l.until = t
	return l.Conn.SetDeadline(t)
}

// Read returns when ctx is done.
func (l *line) Read(b []byte) (int, error) {
	soon := time.Now().Add(patience)
	if end, bounded := l.ctx.Deadline(); bounded && end.Before(soon) {
		soon = end
	}
	_ = l.Conn.SetReadDeadline(soon)
	n, err := l.Conn.Read(b)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	_ = l.Conn.SetReadDeadline(l.until)
	stop := context.AfterFunc(l.ctx, func() { _ = l.Conn.SetReadDeadline(time.Unix(1, 0)) })
	n, err = l.Conn.Read(b)
	if !stop() {
		l.interrupted.Store(true)
	}
	return n, err
}

// Close leaves an interrupted connection to drain.
func (l *line) Close() error {
	if l.interrupted.Load() {
		return nil
	}
	return l.Conn.Close()
}

// drain waits until an interrupted request is answered, or cannot be any more.
func (l *line) drain() error {
	_ = l.Conn.SetReadDeadline(l.until)
	_, err := l.Conn.Read(make([]byte, 1))
	return err
}

// close ends the connection and its client.
func (l *line) close() {
	if l.idle != nil {
		l.idle.Stop()
	}
	if l.Conn != nil {
		l.detach()
		_ = l.Conn.Close()
	}
	if l.client != nil {
		l.client.Close()
	}
}
