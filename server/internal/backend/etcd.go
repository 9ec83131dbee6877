package backend

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/driver/etcd"
)

func (t Target) etcdLocks(ctx context.Context, o Options) (*Locks, error) {
	client, err := t.dialEtcd(ctx)
	if err != nil {
		return nil, err
	}
	d, err := etcd.Open(ctx, client, &etcd.Options{Prefix: o.Prefix, TTL: o.TTL, Seed: o.Seed})
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

// dialEtcd finds out first whether anybody listens.
func (t Target) dialEtcd(ctx context.Context) (*clientv3.Client, error) {
	secure, err := t.TLS()
	if err != nil {
		return nil, err
	}
	if err := Probe(ctx, t.endpoints, secure); err != nil {
		return nil, err
	}
	cfg := clientv3.Config{Endpoints: t.endpoints, TLS: secure, Logger: zap.NewNop(), Context: context.WithoutCancel(ctx),
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
