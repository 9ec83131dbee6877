package goredis_test

import (
	"context"
	"log"

	goredis "github.com/redis/go-redis/v9"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	adapter "github.com/interlock-dev/interlock/driver/redis/goredis"
	"github.com/interlock-dev/interlock/guard/fence"
)

// A lock and a guard on the Redis of a go-redis client: the holder writes only if no
// newer token has entered.
func Example() {
	ctx := context.Background()
	rdb := goredis.NewClient(&goredis.Options{Addr: "localhost:6379"})
	defer rdb.Close()

	client, err := adapter.Client(rdb, redis.Settings{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	d, err := redis.Open(ctx, client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	store := fence.NewStore(redis.NewFence(client))
	err = locks.Do(ctx, "report", func(ctx context.Context, c interlock.Claim) error {
		return store.Enter(ctx, c, "report", driver.Write{Key: "data:report", Value: []byte("done")})
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print(rdb.Get(ctx, "data:report").Val())
	// no Output: it needs a server
}
