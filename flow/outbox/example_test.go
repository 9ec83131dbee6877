package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
)

// An order and the message about it are committed together; a relay under a lock
// delivers the message.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	box := outbox.Table{}
	notifier, err := postgres.NewNotifier(pool.Config().ConnConfig, "outbox", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer notifier.Close(ctx)

	// The service.
	err = outbox.Tx(ctx, postgres.Pool(pool), notifier, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (id, state) values (42, 'created')`); err != nil {
			return err
		}
		return box.Add(ctx, postgres.Tx(tx), driver.Message{Topic: "orders", Key: "order/42", Payload: []byte(`{"state":"created"}`)})
	})
	if err != nil {
		log.Fatal(err)
	}

	// The relay: one lock for all slices.
	sink := outbox.Func(func(ctx context.Context, m driver.Message) error {
		fmt.Println(m.ID, m.Topic, m.Key) // receivers act once for each m.ID: guard/once
		return nil
	})
	relay, err := outbox.NewRelay(postgres.Pool(pool), box, sink, &outbox.Options{Notifier: notifier})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil) // or redis, or etcd
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Keep(ctx, "outbox", relay.RunAll) // until ctx ends; other processes stand by
	fmt.Println("stopped:", err)
}

// Several relays share the slices: each is a partition of a group.
func ExampleRelay_RunOf() {
	var (
		ctx    = context.Background()
		pool   *pgxpool.Pool
		locks  driver.Fenced
		values driver.Values
	)
	box := outbox.Table{Slices: 16}
	relay, err := outbox.NewRelay(postgres.Pool(pool), box, &memory.Sink{}, &outbox.Options{Poison: outbox.ToDeadLetters})
	if err != nil {
		log.Fatal(err)
	}
	g, err := partition.Join(ctx, locks, values, "outbox", partition.Layout{Partitions: box.Slices}, &partition.Options{
		Work: func(ctx context.Context, p partition.Partition) error {
			return relay.RunOf(ctx, p.Claim, p.Index, p.Layout.Count())
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Leave(ctx)
}

// The set-up of a deployment, and an operator's commands after a receiver was fixed.
func ExampleTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	box := outbox.Table{Name: "ops.outbox", Slices: 16}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return box.Create(ctx, postgres.Tx(tx)) })
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		status, err := box.Status(ctx, postgres.Tx(tx))
		for _, w := range status.Waiting {
			fmt.Println(w.Key, "waits for", w.ID, "which was tried", w.Attempts, "times:", w.LastError)
		}
		letters, err2 := box.DeadLetters(ctx, postgres.Tx(tx), outbox.DeadLetterQuery{Topic: "orders"})
		var ids []string
		for _, l := range letters {
			ids = append(ids, l.ID)
		}
		return errors.Join(err, err2, box.Replay(ctx, postgres.Tx(tx), ids, "receiver fixed", "alice"))
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A function is a sink.
func ExampleFunc() {
	sink := outbox.Func(func(_ context.Context, m driver.Message) error {
		if m.ID == "2" {
			return errors.New("not now")
		}
		return nil
	})
	for _, err := range sink.Publish(context.Background(), []driver.Message{
		{ID: "1", Topic: "t", Key: "k"}, {ID: "2", Topic: "t", Key: "k"}, {ID: "3", Topic: "t", Key: "k"}}) {
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// not now
	// publish: held back: a message before it, of the same topic and key, was not delivered
}
