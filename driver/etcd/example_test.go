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
	"github.com/interlock-dev/interlock/guard/value"
)

// A job that one process runs at a time, on data in the same etcd. The fence
// rejects a process that was paused for longer than its lease.
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

// A configuration in etcd that only the holder of its lock writes, and every
// process watches.
func ExampleNewValues() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	values, err := value.New(etcd.NewValues(client, "config/"), nil)
	if err != nil {
		log.Fatal(err)
	}
	for v, err := range values.Watch(ctx, "limits") {
		if err != nil {
			log.Fatal(err)
		}
		log.Printf("%s, as %s wrote under token %d", v.Data, v.Source, v.Token)
	}
}

// A program that shows locks reads them again after each change, and not before.
func ExampleDriver_Watch() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	d, err := etcd.Open(ctx, client, &etcd.Options{Prefix: "locks/"})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	look := make(chan struct{}, 1)
	go func() {
		for range look {
			locks, _, err := d.Locks(ctx, "accounts/", 100)
			log.Println(locks, err)
		}
	}()
	err = d.Watch(ctx, "accounts/", func(string) {
		select {
		case look <- struct{}{}:
		default: // it is about to read anyway
		}
	})
	close(look)
	log.Println(err)
}
