package backend

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/zookeeper"
)

func (t Target) zookeeperLocks(ctx context.Context, o Options) (*Locks, error) {
	secure, err := t.TLS()
	if err != nil {
		return nil, err
	}
	if err := Probe(ctx, t.endpoints, secure); err != nil {
		return nil, err // the client would go on trying
	}
	d, err := zookeeper.Open(ctx, &zookeeper.Options{Servers: t.endpoints, Root: t.path, TTL: o.TTL, Seed: o.Seed,
		RawNames: t.own.Get("names") == "raw", Auth: t.zookeeperAuth(), Dial: Dialer(secure)})
	return opened(below(o.Prefix, d), err, nothing)
}

func (t Target) zookeeperAuth() []zookeeper.Auth {
	if t.user == nil {
		return nil
	}
	return []zookeeper.Auth{{Scheme: "digest", Credentials: t.digest()}}
}

func (t Target) digest() []byte {
	password, _ := t.user.Password()
	return []byte(t.user.Username() + ":" + password)
}

// valueSession is the length of the session for values, in which nothing lives, and
// valueGreeting how long a server may take to answer a new connection.
const (
	valueSession  = 10 * time.Second
	valueGreeting = 2 * time.Second
)

// zookeeperValues has a session of its own, ready when it returns.
func (t Target) zookeeperValues(ctx context.Context) (driver.Values, func(), error) {
	secure, err := t.TLS()
	if err != nil {
		return nil, nil, err
	}
	if err := Probe(ctx, t.endpoints, secure); err != nil {
		return nil, nil, err
	}
	conn, events, err := zk.Connect(t.endpoints, valueSession, zk.WithLogger(silence{}), zk.WithLogInfo(false),
		zk.WithDialer(zookeeper.Dialer(valueGreeting, Dialer(secure))), zk.WithHostProvider(zookeeper.Hosts()))
	if err != nil {
		return nil, nil, err
	}
	if err := t.settle(ctx, conn, events); err != nil {
		conn.Close()
		return nil, nil, err
	}
	root := t.path
	if root == "" {
		root = "/interlock"
	}
	return zookeeper.NewValues(conn, root), conn.Close, nil
}

// settle waits for a session and says who we are.
func (t Target) settle(ctx context.Context, conn *zk.Conn, events <-chan zk.Event) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-events:
			switch {
			case !ok || e.State == zk.StateAuthFailed:
				return errors.New("no session was granted")
			case e.State == zk.StateHasSession && t.user != nil:
				return conn.AddAuth("digest", t.digest())
			case e.State == zk.StateHasSession:
				return nil
			}
		}
	}
}

// silence is a logger of which nothing is heard: errors are returned.
type silence struct{}

func (silence) Printf(string, ...any) {}
