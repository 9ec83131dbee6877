package backend

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/redis"
)

// Options of a connection.
type Options struct {
	// TTL is how long a lock lives without renewal; 0 means the driver's
	// default of 30 s.
	TTL time.Duration
	// Prefix is put before every key; empty means none.
	Prefix string
}

// Locker is what the command line needs of a lock driver.
type Locker interface {
	driver.Fenced
	driver.Inspector
}

// Locks is an open lock service.
type Locks struct {
	Locker
	disconnect func()
}

// Close stops renewing and disconnects. What is still held expires.
func (l *Locks) Close(ctx context.Context) error {
	defer l.disconnect()
	return l.Locker.Close(ctx)
}

// Locks connects to a lock service. The context bounds the opening only.
func (t Target) Locks(ctx context.Context, o Options) (*Locks, error) {
	if err := t.CheckTTL(o.TTL); err != nil {
		return nil, err
	}
	switch t.kind {
	case "etcd":
		return t.etcdLocks(ctx, o)
	case "redis":
		return t.redisLocks(ctx, o)
	}
	return nil, &URLError{"there are no locks on " + t.kind + " yet, only guards; use an etcd:// or redis:// URL"}
}

// A TTLError says which TTL a backend can grant instead of the one asked for.
type TTLError struct{ Reason string }

// Error is one sentence, without the TTL that was asked for.
func (e *TTLError) Error() string { return e.Reason }

// ttls are the shortest and the longest lease that each driver asks for, and
// what else a lease must be.
var ttls = map[string]struct {
	min, max time.Duration
	units    string
}{
	"etcd":  {time.Second, 24 * time.Hour, ", in whole seconds"},
	"redis": {redis.MinTTL, redis.MaxTTL, ""},
}

// CheckTTL knows without connecting what cannot be granted; 0 is the default.
// Errors are [*TTLError].
func (t Target) CheckTTL(ttl time.Duration) error {
	bounds, ok := ttls[t.kind]
	switch {
	case ttl == 0 || !ok:
	case ttl < bounds.min || ttl > bounds.max:
		return &TTLError{fmt.Sprintf("%s grants leases of %v to %v%s", t.kind, bounds.min, bounds.max, bounds.units)}
	case t.kind == "etcd" && ttl%time.Second != 0:
		return &TTLError{fmt.Sprintf("etcd grants leases in whole seconds; %v would do", ttl.Truncate(time.Second)+time.Second)}
	}
	return nil
}

func (t Target) etcdLocks(ctx context.Context, o Options) (*Locks, error) {
	client, err := t.dialEtcd(ctx)
	if err != nil {
		return nil, err
	}
	d, err := etcd.Open(ctx, client, &etcd.Options{Prefix: o.Prefix, TTL: o.TTL})
	if err != nil {
		_ = client.Close() // the error from opening says more
		return nil, err
	}
	l := &Locks{Locker: d, disconnect: func() { _ = client.Close() }}
	if granted := d.Guarantees().TTL; o.TTL > 0 && granted > o.TTL {
		_ = l.Close(ctx) // nothing is held
		return nil, &TTLError{fmt.Sprintf("this etcd grants no shorter lease than %v", granted)}
	}
	return l, nil
}

// dialEtcd finds out first whether anybody listens: the client library waits
// for a server that refuses as patiently as for one that is slow.
func (t Target) dialEtcd(ctx context.Context) (*clientv3.Client, error) {
	if err := t.probe(ctx); err != nil {
		return nil, err
	}
	cfg := clientv3.Config{Endpoints: t.endpoints, Logger: zap.NewNop(), Context: context.WithoutCancel(ctx),
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second}
	if deadline, ok := ctx.Deadline(); ok {
		cfg.DialTimeout = time.Until(deadline)
	}
	if t.user != nil {
		cfg.Username = t.user.Username()
		cfg.Password, _ = t.user.Password()
	}
	return clientv3.New(cfg)
}

// probe is nil if at least one endpoint accepts a connection.
func (t Target) probe(ctx context.Context) error {
	var first error
	for _, endpoint := range t.endpoints {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
		if err == nil {
			return conn.Close()
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (t Target) redisLocks(ctx context.Context, o Options) (*Locks, error) {
	client, err := t.dialRedis()
	if err != nil {
		return nil, err
	}
	d, err := redis.Open(ctx, client, &redis.Options{Prefix: o.Prefix, TTL: o.TTL})
	if err != nil {
		client.Close()
		return nil, err
	}
	return &Locks{Locker: d, disconnect: client.Close}, nil
}

func (t Target) dialRedis() (rueidis.Client, error) {
	return redis.Dial(t.raw)
}

func (t Target) dialPostgres(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(t.raw)
	if err != nil {
		return nil, &URLError{"the postgres URL is not understood: check its database and options"}
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}
