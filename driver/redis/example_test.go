package redis_test

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
)

// What the shorter examples stand on; ExampleOpen shows where it comes from.
var (
	ctx    = context.Background()
	client rueidis.Client
	locks  *lock.Fenced
)

// A lock and a guard in one Redis: the holder writes only if no newer token has
// entered.
func ExampleOpen() {
	client, err := redis.Dial("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	d, err := redis.Open(ctx, client, &redis.Options{TTL: 10 * time.Second})
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
}

// TLS, a password, database 2, and a shorter time to connect.
func ExampleDial() {
	client, err := redis.Dial("rediss://worker:secret@redis.example.com:6380/2?dial_timeout=500ms")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // after the drivers that use it
}

// Read, decide, write: the mark is raised before the read, and checked again
// with the write.
func ExampleNewFence() {
	store := fence.NewStore(redis.NewFence(client))
	err := locks.Do(ctx, "visits", func(ctx context.Context, c interlock.Claim) error {
		if err := store.Enter(ctx, c, "visits"); err != nil {
			return err
		}
		n, err := client.Do(ctx, client.B().Get().Key("data:visits").Build()).AsInt64()
		if err != nil && !rueidis.IsRedisNil(err) {
			return err
		}
		next := strconv.AppendInt(nil, n+1, 10)
		return store.Enter(ctx, c, "visits", driver.Write{Key: "data:visits", Value: next})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A script of one's own makes writes of other types; it runs after the check.
func ExampleFence_Eval() {
	guard := redis.NewFence(client)
	err := locks.Do(ctx, "board", func(ctx context.Context, c interlock.Claim) error {
		raise := driver.Raise{Resource: "board", Token: c.Token(), Source: c.Owner()}
		added, err := guard.Eval(ctx, raise, `return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])`,
			[]string{"data:board"}, []string{"1200", "alice"})
		if err != nil {
			return err
		}
		fmt.Println(added.AsInt64())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The lock that other Redis clients use too. It only saves work: its claims have no
// token, so no guard accepts them.
func ExampleOpenPlain() {
	d, err := redis.OpenPlain(ctx, client, &redis.Options{Prefix: "lock:"})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	cache, err := lock.NewAdvisory(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close(ctx)
	err = cache.Do(ctx, "warm the cache", func(ctx context.Context, _ *lock.AdvisoryClaim) error {
		return nil // work that may be done twice
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A watcher reads again after each hint, and not before.
func ExampleDriver_Watch() {
	d, err := redis.Open(ctx, client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	look := make(chan string, 1)
	go func() {
		for name := range look {
			fmt.Println(d.Lock(ctx, name))
		}
	}()
	err = d.Watch(ctx, "jobs/", func(name string) {
		select {
		case look <- name: // the empty name: any of them
		default: // a real program remembers the hint
		}
	})
	log.Print(err)
}

// An operator breaks the lock of a dead holder by name and owner, with a reason.
// Only a guard rejects the holder's later writes.
func ExampleDriver_Break() {
	d, err := redis.Open(ctx, client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	state, err := d.Lock(ctx, "jobs/nightly")
	if err != nil || state.Holder == nil {
		log.Fatal("nothing to break: ", err)
	}
	record, ok, err := d.Break(ctx, driver.Break{Name: state.Name, Owner: state.Holder.Owner,
		Reason: "its machine was switched off", By: "alice"})
	fmt.Println(record, ok, err)
}

// The holder of a claim publishes a value with its token; anyone may watch.
func ExampleNewValues() {
	values := redis.NewValues(client, "config/")
	err := locks.Do(ctx, "prices", func(ctx context.Context, c interlock.Claim) error {
		return values.Put(ctx, "prices", driver.Value{Data: []byte("v2"), Token: c.Token(), Source: c.Owner()})
	})
	if err != nil {
		log.Fatal(err)
	}
	err = values.Watch(ctx, "prices", func(v driver.Value) { fmt.Println(v.Token, string(v.Data)) })
	log.Print(err)
}

// A lock that survives the failure of two servers of five. It only saves work: its
// claims have no token, so no guard accepts them.
func ExampleOpenQuorum() {
	var clients []rueidis.Client // of independent servers, each made by Dial
	d, err := redis.OpenQuorum(ctx, clients, &redis.QuorumOptions{MinWork: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	reports, err := lock.NewAdvisory(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer reports.Close(ctx)
	err = reports.Do(ctx, "monthly report", func(ctx context.Context, _ *lock.AdvisoryClaim) error {
		return nil // work that may be done twice
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range d.Nodes() {
		fmt.Println(n.Address, n.Up, n.Err)
	}
}
