package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/redis"
)

// openLocks opens the lock system of rawURL. close ends the driver's claims and its
// connections.
func openLocks(ctx context.Context, rawURL string, ttl time.Duration) (d driver.Fenced, close func(), err error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, nil, fmt.Errorf("--backend: %w", err)
	}
	switch u.Scheme {
	case "etcd":
		return openEtcd(ctx, strings.Split(u.Host, ","), ttl)
	case "redis":
		return openRedis(ctx, rawURL, ttl)
	}
	return nil, nil, fmt.Errorf("--backend %q: the scheme must be etcd or redis", rawURL)
}

func openEtcd(ctx context.Context, endpoints []string, ttl time.Duration) (driver.Fenced, func(), error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	d, err := etcd.Open(ctx, client, &etcd.Options{TTL: ttl})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return d, func() { shut(d); client.Close() }, nil
}

func openRedis(ctx context.Context, rawURL string, ttl time.Duration) (driver.Fenced, func(), error) {
	client, err := redis.Dial(rawURL)
	if err != nil {
		return nil, nil, err
	}
	d, err := redis.Open(ctx, client, &redis.Options{TTL: ttl})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return d, func() { shut(d); client.Close() }, nil
}

// shut closes a lock or a driver within its own time limit: the program is ending,
// and held claims expire by themselves.
func shut(c interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}
