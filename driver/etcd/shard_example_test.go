package etcd_test

import (
	"context"
	"errors"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// Money moves between two shards, all or nothing, and the decision is kept by the
// majority that keeps etcd: whichever process dies, another one finishes the transfer.
func ExampleShard() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	north := twopc.Define("north", etcd.NewShard(client, "bank/north/"))
	south := twopc.Define("south", etcd.NewShard(client, "bank/south/"))

	j, err := journal.New(etcd.NewJournal(client, "bank/"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer j.Close()
	c, err := coordinator.New(j, nil)
	if err != nil {
		log.Fatal(err)
	}
	manager, err := twopc.New(c, nil, north, south)
	if err != nil {
		log.Fatal(err)
	}
	d, err := etcd.Open(ctx, client, &etcd.Options{Prefix: "locks/"})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	go manager.Watch(ctx)
	go locks.Do(ctx, "transfers", func(ctx context.Context, claim interlock.Claim) error { return c.Run(ctx, claim) })

	transfer := func(ctx context.Context, t *twopc.T) error {
		from, err := north.Join(ctx, t)
		if err != nil {
			return err
		}
		to, err := south.Join(ctx, t)
		if err != nil {
			return err
		}
		// Prepare checks that its reads are unchanged and not reserved by others.
		if err := from.Add(ctx, "alice", -30); err != nil {
			return err // an *etcd.OverdrawnError, if she has less
		}
		return to.Add(ctx, "bob", 30)
	}
	for range 3 { // an account that another branch holds is not waited for
		err = manager.Run(ctx, "transfer/42", transfer)
		var changed *etcd.ChangedError
		if !errors.Is(err, interlock.ErrHeld) && !errors.As(err, &changed) {
			break
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}
