// Command quickstart counts its runs in etcd under a lock. A run that is paused for longer
// than its lease may write late, which the lock cannot prevent. The guard rejects that
// write: it checks the claim's token in the same step.
//
// Start `interlock dev`, then run this in several terminals at once.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/guard/fence"
)

// counter is the key that holds the count. It has no slash: keys below "NAME/" are the
// contenders for the lock NAME.
const counter = "runs.count"

func main() {
	endpoint := "127.0.0.1:7460"
	if len(os.Args) > 1 {
		endpoint = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := run(ctx, endpoint); err != nil {
		log.Fatal("quickstart: ", err)
	}
}

func run(ctx context.Context, endpoint string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	defer client.Close()
	d, err := etcd.Open(ctx, client, nil)
	if err != nil {
		return err
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		return err
	}
	defer locks.Close(ctx)
	guard := fence.NewStore(etcd.NewFence(client, ""))

	return locks.Do(ctx, "runs", func(ctx context.Context, c interlock.Claim) error {
		if err := guard.Enter(ctx, c, "runs"); err != nil { // enter before you read
			return err
		}
		n, err := count(ctx, client)
		if err != nil {
			return err
		}
		next := fence.Write{Key: counter, Value: strconv.AppendInt(nil, n+1, 10)}
		if err := guard.Enter(ctx, c, "runs", next); err != nil { // check again and write, in one step
			return err
		}
		fmt.Printf("run %d, token %d\n", n+1, c.Token())
		return nil
	})
}

// count reads the number of runs.
func count(ctx context.Context, client *clientv3.Client) (int64, error) {
	r, err := client.Get(ctx, counter)
	if err != nil || len(r.Kvs) == 0 {
		return 0, err
	}
	return strconv.ParseInt(string(r.Kvs[0].Value), 10, 64)
}
