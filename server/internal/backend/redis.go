package backend

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver/redis"
)

func (t Target) redisLocks(ctx context.Context, o Options) (*Locks, error) {
	if t.mode == "plain" {
		return nil, withoutTokens(t.mode)
	}
	client, err := t.dialRedis()
	if err != nil {
		return nil, err
	}
	d, err := redis.Open(ctx, client, &redis.Options{Prefix: o.Prefix, TTL: o.TTL})
	return opened(d, err, client.Close)
}

func (t Target) redisPlain(ctx context.Context, o Options) (*View, error) {
	client, err := t.dialRedis()
	if err != nil {
		return nil, err
	}
	p, err := redis.OpenPlain(ctx, client, &redis.Options{Prefix: o.Prefix})
	if err != nil {
		client.Close()
		return nil, err
	}
	return &View{p, func(ctx context.Context) error {
		defer client.Close()
		return p.Close(ctx)
	}}, nil
}

func (t Target) dialRedis() (rueidis.Client, error) { return redis.Dial(t.raw) }
