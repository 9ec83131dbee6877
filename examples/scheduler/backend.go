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

// backend is one system that elects leaders, stores what they save, and guards what they
// write.
type backend struct {
	locks  driver.Fenced
	values driver.Values
	fence  driver.Fence
	get    func(ctx context.Context, key string) (string, error) // empty if there is none
	close  func()
}

func open(ctx context.Context, rawURL string, ttl time.Duration) (*backend, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("--backend: %w", err)
	}
	switch u.Scheme {
	case "etcd":
		return openEtcd(ctx, strings.Split(u.Host, ","), ttl)
	case "redis":
		return openRedis(ctx, rawURL, ttl)
	}
	return nil, fmt.Errorf("--backend %q: the scheme must be etcd or redis", rawURL)
}

func openEtcd(ctx context.Context, endpoints []string, ttl time.Duration) (*backend, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	d, err := etcd.Open(ctx, client, &etcd.Options{TTL: ttl})
	if err != nil {
		client.Close()
		return nil, err
	}
	get := func(ctx context.Context, key string) (string, error) {
		r, err := client.Get(ctx, key)
		if err != nil || len(r.Kvs) == 0 {
			return "", err
		}
		return string(r.Kvs[0].Value), nil
	}
	return &backend{locks: d, values: etcd.NewValues(client, ""), fence: etcd.NewFence(client, ""), get: get,
		close: func() { shut(d); client.Close() }}, nil
}

func openRedis(ctx context.Context, rawURL string, ttl time.Duration) (*backend, error) {
	client, err := redis.Dial(rawURL)
	if err != nil {
		return nil, err
	}
	d, err := redis.Open(ctx, client, &redis.Options{TTL: ttl})
	if err != nil {
		client.Close()
		return nil, err
	}
	get := func(ctx context.Context, key string) (string, error) {
		values, err := client.Do(ctx, client.B().Mget().Key(key).Build()).AsStrSlice()
		if err != nil {
			return "", err
		}
		return values[0], nil
	}
	return &backend{locks: d, values: redis.NewValues(client, ""), fence: redis.NewFence(client), get: get,
		close: func() { shut(d); client.Close() }}, nil
}

// shut closes elections or a driver within its own time limit: the program is ending,
// and held claims expire by themselves.
func shut(c interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}
