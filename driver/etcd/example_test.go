package etcd_test

import (
	"context"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
)

// A job that one process does at a time, on data that lives in etcd too. A
// process that slept past its lease is refused by the fence.
func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{"127.0.0.1:2379"},
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	d, err := etcd.Open(ctx, client, &etcd.Options{Prefix: "locks/"})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	fence := etcd.NewFence(client, "data/")
	err = locks.Do(ctx, "leaderboard", func(ctx context.Context, c interlock.Claim) error {
		raise := driver.Raise{Resource: "leaderboard", Token: c.Token(), Source: c.Owner()}
		if err := fence.Enter(ctx, raise); err != nil { // before the first read
			return err
		}
		return fence.Enter(ctx, raise, driver.Write{Key: "data/leaderboard", Value: []byte("…")})
	})
	if err != nil {
		log.Fatal(err)
	}
}
