package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// openDirect acquires and releases until the connection for requests that are alone is
// open. It does not close by itself.
func openDirect(t testing.TB, d *Driver) (l *line) {
	t.Helper()
	second := d.conn.link.direct
	testbed.Eventually(t, "a second connection", bound, func() bool {
		owner, _ := take(t, d, "warm")
		release(t, d, "warm", owner)
		second.mu.Lock()
		defer second.mu.Unlock()
		l = second.line.Load()
		return l != nil && l.idle.Stop()
	})
	return l
}

// A call on a stopped server ends with its ctx. The name is free after the release that
// follows, whatever the server has read.
func TestDirectRequestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d, operator := openOn(t, server.Addr(), nil), dial(t, server.Addr())
	cause := errors.New("enough")
	for name, begin := range map[string]func(time.Duration) (context.Context, context.CancelFunc){
		"deadline": func(after time.Duration) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(t.Context(), after, cause)
		},
		"cancelled": func(after time.Duration) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(t.Context())
			timer := time.AfterFunc(after, func() { cancel(cause) })
			return ctx, func() { timer.Stop(); cancel(nil) }
		},
	} {
		used := openDirect(t, d)
		server.Pause()
		r := driver.Request{Name: name, Owner: newOwner()}
		var err error
		var took time.Duration
		for after := 20 * time.Millisecond; after < silence; after *= 2 {
			ctx, cancel := begin(after)
			began := time.Now()
			_, err = d.Acquire(ctx, r)
			took = time.Since(began)
			if cancel(); interlock.Kind(err) != interlock.Definite || !errors.Is(err, cause) {
				break // otherwise ctx ended before the request was sent, on a busy machine
			}
		}
		if interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, cause) || took > silence {
			t.Errorf("%s: returned %v after %v", name, err, took)
		}
		if d.conn.link.direct.line.Load() == used {
			t.Errorf("%s: the interrupted connection is still in use", name)
		}
		server.Resume()
		release(t, d, name, r.Owner)
		if n := number(t, operator, "EXISTS", name); n != 0 {
			t.Errorf("%s: held after the release", name)
		}
	}
}

// network keeps the connections of a client.
type network struct {
	mu    sync.Mutex
	conns []*delayed
}

// delayed is a connection on which writes may be late.
type delayed struct {
	net.Conn
	mu     sync.Mutex
	held   bool
	late   bytes.Buffer
	writes int // while held
}

func (c *delayed) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		return c.Conn.Write(b)
	}
	c.writes++
	return c.late.Write(b)
}

// hold makes writes late, until deliver is called.
func (c *delayed) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

func (c *delayed) heldWrites() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

func (c *delayed) deliver() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	_ = c.Conn.SetWriteDeadline(time.Time{}) // it may have been interrupted
	_, err := c.late.WriteTo(c.Conn)
	return err
}

func (n *network) dial(ctx context.Context, to string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, &delayed{Conn: c})
	return n.conns[len(n.conns)-1], nil
}

// The release after an abandoned acquire request waits for it, although another
// connection would be faster.
func TestDirectRequestsOfOneOwnerKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, slow := range []string{"own connection", "second connection"} {
		t.Run(slow, func(t *testing.T) {
			t.Parallel()
			server := testbed.Redis(t)
			operator, path := dial(t, server.Addr()), new(network)
			client, err := Connect(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true, DialCtxFn: path.dial}, Settings{})
			testbed.OK(t, err)
			t.Cleanup(client.Close)
			d := openWith(t, client, nil)
			openDirect(t, d)
			path.mu.Lock()
			way := path.conns[len(path.conns)-1]
			if slow == "own connection" {
				way = path.conns[0]
				d.conn.link.inFlight.Add(1) // as if another request were under way
			}
			path.mu.Unlock()
			way.hold()
			before := calls(t, operator)["evalsha"]
			ctx, cancel := context.WithCancel(t.Context())
			abandoned := make(chan error, 1)
			r := driver.Request{Name: "x", Owner: newOwner()}
			go func() {
				_, err := d.Acquire(ctx, r)
				abandoned <- err
			}()
			testbed.Eventually(t, "the request is on its way", bound, func() bool { return way.heldWrites() > 0 })
			cancel()
			if err := <-abandoned; interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if slow == "own connection" {
				d.conn.link.inFlight.Add(-1)
			}
			released := make(chan error, 1)
			go func() { released <- d.Release(t.Context(), r.Name, r.Owner) }()
			testbed.Eventually(t, "the release is behind it", bound, func() bool {
				d.conn.mu.Lock()
				defer d.conn.mu.Unlock()
				return way.heldWrites() > 1 || d.conn.last[r.Owner] != nil || len(released) > 0
			})
			testbed.OK(t, errors.Join(way.deliver(), <-released))
			testbed.Eventually(t, "both requests arrive", bound, func() bool { return calls(t, operator)["evalsha"] >= before+2 })
			if number(t, operator, "EXISTS", r.Name) != 0 {
				t.Error("held after the release")
			}
		})
	}
}

// A second connection that breaks alone costs one attempt, and is replaced.
func TestDirectConnectionBreaks(t *testing.T) {
	t.Parallel()
	d := openOn(t, testbed.Redis(t).Addr(), nil)
	_ = openDirect(t, d).Conn.Close()
	if _, err := d.Acquire(t.Context(), driver.Request{Name: "x", Owner: newOwner()}); interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("on the broken connection: %v", err)
	}
	take(t, d, "x/y")
	_ = openDirect(t, d).Conn.Close()
	locks, err := lock.NewFenced(d, nil)
	testbed.OK(t, err)
	c, err := locks.Acquire(t.Context(), "z")
	if err != nil || c.Release(t.Context()) != nil {
		t.Error(err)
	}
}

// The second connection is closed when it is unused, and with the client.
func TestDirectConnectionCloses(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, client := dial(t, server.Addr()), dial(t, server.Addr())
	d := openWith(t, client, nil)
	openDirect(t, d).idle.Reset(directIdle)
	testbed.Eventually(t, "an unused connection is closed", bound, func() bool { return connections(t, operator) == 2 })
	openDirect(t, d)
	testbed.OK(t, d.Close(t.Context()))
	client.Close()
	testbed.Eventually(t, "all connections are closed", bound, func() bool { return connections(t, operator) == 1 })
}

// connections counts those of the server, with the operator's own.
func connections(t *testing.T, operator rueidis.Client) int {
	t.Helper()
	list, err := raw(t, operator, "CLIENT", "LIST", "TYPE", "NORMAL").ToString()
	testbed.OK(t, err)
	subscribed, err := raw(t, operator, "CLIENT", "LIST", "TYPE", "PUBSUB").ToString()
	testbed.OK(t, err)
	return strings.Count(list+subscribed, "\n")
}
