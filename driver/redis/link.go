package redis

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// link knows whether the connections of a client are open. While they are, a request is
// sent in its caller's goroutine: the client ignores the end of a context only while it
// waits for another request's dial.
type link struct {
	breaks   atomic.Int64 // how often a connection was closed or failed
	inFlight atomic.Int64 // requests in their callers' goroutines
	server   atomic.Value // string, the address of the latest connection
	direct   *direct      // nil if the client has only its own connection

	mu   sync.Mutex
	open map[*linked]bool
}

// maxInFlight is well below what the client queues without blocking.
const maxInFlight = 512

// linkOf returns the link of a client made by [Connect]; nil for others, and for a
// cluster, which dials its nodes when it first needs them.
func linkOf(client rueidis.Client) *link {
	if c, ok := client.(*configured); ok && client.Mode() == rueidis.ClientModeStandalone {
		return c.link
	}
	return nil
}

// count returns breaks, or -2 without a link, so that no connection counts as open.
func (l *link) count() int64 {
	if l == nil {
		return -2
	}
	return l.breaks.Load()
}

// newLink makes option report failed connections to a link, before the client notices and
// dials.
func newLink(option *rueidis.ClientOption) *link {
	l := &link{open: map[*linked]bool{}}
	dial := option.DialCtxFn
	old := option.DialFn // which DialCtxFn replaces
	switch {
	case dial == nil && old == nil:
		dial = dialTo
	case dial == nil:
		dial = func(_ context.Context, to string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
			return old(to, d, t)
		}
	}
	l.direct = newDirect(l, *option, dial)
	option.DialCtxFn = func(ctx context.Context, to string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		c, err := dial(ctx, to, d, t)
		if err != nil {
			return nil, err
		}
		l.server.Store(remote(c))
		opened := &linked{c, l}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open[opened] = true
		return opened, nil
	}
	return l
}

// demoted is in the answer of a server that has become a replica.
const demoted = "READONLY You can't write"

// look closes the connections if an answer is that of a replica. Redis keeps those that it had as a
// master, and the address may lead to another master now.
func (l *link) look(answers ...rueidis.RedisResult) {
	if l == nil || !slices.ContainsFunc(answers, func(a rueidis.RedisResult) bool {
		err := a.Error()
		return err != nil && strings.Contains(err.Error(), demoted)
	}) {
		return
	}
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// close ends what the client does not know of.
func (l *link) close() {
	if l != nil {
		l.direct.close()
	}
}

// remote returns the server's address, or "" if c does not know it.
func remote(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

func dialTo(ctx context.Context, to string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	if t == nil {
		return d.DialContext(ctx, "tcp", to)
	}
	secure := tls.Dialer{NetDialer: d, Config: t}
	return secure.DialContext(ctx, "tcp", to)
}

// linked is a connection that reports when it breaks.
type linked struct {
	net.Conn
	link *link
}

func (c *linked) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.note(err)
}

func (c *linked) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.note(err)
}

func (c *linked) Close() error {
	c.link.breaks.Add(1)
	c.link.mu.Lock()
	delete(c.link.open, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}

func (c *linked) note(err error) error {
	if err != nil {
		c.link.breaks.Add(1)
	}
	return err
}
