package zookeeper_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/zookeeper"
)

// A job that one process runs at a time, with its settings in ZooKeeper. A process that was paused
// for longer than its session is rejected.
func Example() {
	ctx := context.Background()
	servers := []string{"127.0.0.1:2181"}
	d, err := zookeeper.Open(ctx, &zookeeper.Options{Servers: servers, TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	conn, _, err := zk.Connect(servers, 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	values := zookeeper.NewValues(conn, "/interlock")
	err = locks.Do(ctx, "leaderboard", func(ctx context.Context, c interlock.Claim) error {
		return values.Put(ctx, "leaderboard", driver.Value{Data: []byte("…"), Token: c.Token(), Source: c.Owner()})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A Curator client holds the lock and writes under the guard that our processes use: its node
// yields its token.
func ExampleDriver_Token() {
	ctx := context.Background()
	d, err := zookeeper.Open(ctx, &zookeeper.Options{Servers: []string{"127.0.0.1:2181"}})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	const czxid = 0x100000b2f // from the node's Stat
	token, err := d.Token(ctx, czxid)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token)
}

// A process watches settings that only the holder of a lock writes.
func ExampleValues_Watch() {
	ctx := context.Background()
	conn, _, err := zk.Connect([]string{"127.0.0.1:2181"}, 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = zookeeper.NewValues(conn, "/interlock").Watch(ctx, "limits", func(v driver.Value) {
		fmt.Printf("%s since token %v\n", v.Data, v.Token)
	})
	log.Print(err)
}
