package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "etcd", Form: "etcd://host:port[,host:port…]", Port: "2379", Several: true,
		Options: backend.TLSOptions, Prefixes: true,
		Abilities: backend.Values | backend.Journals | backend.Guards | backend.Participants,
		MinTTL:    time.Second, MaxTTL: maxTTL, WholeSeconds: true,
		Check: func(u *backend.URL) error {
			if u.Path() != "" {
				return &backend.URLError{Reason: "an etcd URL has no path after the addresses; use ?prefix= or --prefix for a part of the key space"}
			}
			return backend.CheckTLS(u)
		},
		Connect: connect,
	})
}

// The client sends requests to a member that silently drops everything, in turn with the others, until
// it closes the connection. gRPC pings after 10 s without an answer at the earliest. If the network
// confirms nothing, Linux closes the connection after the timeout (TCP_USER_TIMEOUT).
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 2 * time.Second
)

// connect connects after a check that any server listens.
func connect(ctx context.Context, u *backend.URL) (backend.Connection, error) {
	secure, err := u.TLS()
	if err != nil {
		return nil, err
	}
	if err := backend.Probe(ctx, u.Hosts(), secure); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	opened := context.AfterFunc(ctx, end)
	client, err := clientv3.New(config(life, u, secure)) // waits for the authentication
	if !opened() {
		if err == nil {
			_ = client.Close() // nothing uses it
		}
		return nil, unsent(ctx, "connect", "")
	}
	if err != nil {
		end()
		return nil, err
	}
	return connection{client}, nil
}

func config(ctx context.Context, u *backend.URL, secure *tls.Config) clientv3.Config {
	cfg := clientv3.Config{Endpoints: u.Hosts(), TLS: secure, Logger: zap.NewNop(), Context: ctx,
		DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout}
	if user := u.User(); user != nil {
		cfg.Username = user.Username()
		cfg.Password, _ = user.Password()
	}
	return cfg
}

// connection is what a URL opens.
type connection struct{ client *clientv3.Client }

// Fenced opens a [Driver].
func (c connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	d, err := Open(ctx, c.client, &Options{Prefix: o.Prefix, TTL: o.TTL, Seed: o.Seed})
	if err != nil {
		return nil, err
	}
	if granted := d.Guarantees().TTL; o.TTL > 0 && granted > o.TTL {
		_ = d.Close(ctx) // nothing is held
		return nil, &backend.TTLError{Reason: fmt.Sprintf("this etcd grants no shorter lease than %v", granted)}
	}
	return d, nil
}

// Values opens the values of [NewValues].
func (c connection) Values(_ context.Context, prefix string) (driver.Values, error) {
	return NewValues(c.client, prefix), nil
}

// KeyValues opens the store of [NewKeyValues].
func (c connection) KeyValues(prefix string) driver.KeyValues { return NewKeyValues(c.client, prefix) }

// Journal opens that of [NewJournal].
func (c connection) Journal(_ context.Context, name string) (driver.Journal, error) {
	return NewJournal(c.client, name), nil
}

// Notifier opens that of [NewNotifier], under the prefix name.
func (c connection) Notifier(_ context.Context, name string) (driver.Notifier, func(context.Context) error, error) {
	b := NewNotifier(c.client, name)
	return b, b.Close, nil
}

// Fence opens that of [NewFence].
func (c connection) Fence(prefix string) driver.Fence { return NewFence(c.client, prefix) }

// Participant opens that of [NewShard].
func (c connection) Participant(_ context.Context, namespace string) (driver.Participant, error) {
	return NewShard(c.client, namespace), nil
}

// Close closes the connections.
func (c connection) Close() error { return c.client.Close() }
