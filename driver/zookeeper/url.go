package zookeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "zookeeper", Form: "zookeeper://host:port[,host:port…]/root", Port: "2181", Several: true,
		Options: backend.TLSOptions, Settings: map[string][]string{"names": {"escaped", "raw"}},
		Abilities: backend.Values,
		MinTTL:    minTTL, MaxTTL: maxTTL,
		Check: backend.CheckTLS,
		Connect: func(_ context.Context, u *backend.URL) (backend.Connection, error) {
			secure, err := u.TLS()
			if err != nil {
				return nil, err
			}
			return &connection{url: u, secure: secure}, nil
		},
	})
}

// connection is the connection of a URL: a session for locks and one for values, each
// opened on first use.
type connection struct {
	url    *backend.URL
	secure *tls.Config

	mu    sync.Mutex
	conns []*zk.Conn
}

// Fenced opens a [Driver]. It first checks whether any server listens, because the client
// retries without limit.
func (c *connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	if err := backend.Probe(ctx, c.url.Hosts(), c.secure); err != nil {
		return nil, err
	}
	return Open(ctx, &Options{Servers: c.url.Hosts(), Root: c.url.Path(), TTL: o.TTL, Seed: o.Seed,
		RawNames: c.url.Setting("names") == "raw", Auth: c.auth(), Dial: backend.Dialer(c.secure)})
}

func (c *connection) auth() []Auth {
	user := c.url.User()
	if user == nil {
		return nil
	}
	password, _ := user.Password()
	return []Auth{{Scheme: "digest", Credentials: []byte(user.Username() + ":" + password)}}
}

// valueSession is the length of the session for values, which has no nodes, and valueGreeting
// bounds a server's answer to a new connection.
const (
	valueSession  = 10 * time.Second
	valueGreeting = 2 * time.Second
)

// Values opens those of [NewValues] on a separate session, and waits until it is ready.
func (c *connection) Values(ctx context.Context, _ string) (driver.Values, error) {
	if err := backend.Probe(ctx, c.url.Hosts(), c.secure); err != nil {
		return nil, err
	}
	conn, events, err := zk.Connect(c.url.Hosts(), valueSession, zk.WithLogger(quiet{}), zk.WithLogInfo(false),
		zk.WithDialer(Dialer(valueGreeting, backend.Dialer(c.secure))), zk.WithHostProvider(Hosts()))
	if err != nil {
		return nil, err
	}
	if err := c.settle(ctx, conn, events); err != nil {
		conn.Close()
		return nil, err
	}
	c.mu.Lock()
	c.conns = append(c.conns, conn)
	c.mu.Unlock()
	return NewValues(conn, cmp.Or(c.url.Path(), defaultRoot)), nil
}

// settle waits for a session, and authenticates it.
func (c *connection) settle(ctx context.Context, conn *zk.Conn, events <-chan zk.Event) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-events:
			if !ok || e.State == zk.StateAuthFailed {
				return errors.New("no session was granted")
			}
			if e.State != zk.StateHasSession {
				continue
			}
			for _, a := range c.auth() {
				return conn.AddAuth(a.Scheme, a.Credentials)
			}
			return nil
		}
	}
}

// Close ends the sessions of values.
func (c *connection) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
	return nil
}
