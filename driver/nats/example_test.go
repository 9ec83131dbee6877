package nats_test

import (
	"context"
	"log"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/nats"
	"github.com/interlock-dev/interlock/flow/queue"
)

// A relay of package outbox calls Publish; consumers act once for each id: guard/once.
func Example() {
	sink, err := nats.OpenSink("nats://127.0.0.1:4222", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer sink.Close()
	for _, err := range sink.Publish(context.Background(), []driver.Message{
		{ID: "order-42-created", Topic: "orders", Key: "order/42", Payload: []byte(`{"state":"created"}`)}}) {
		if err != nil {
			log.Print(err) // interlock.Kind(err) is Uncertain if the message may have arrived
		}
	}
}

// Members of a group share the partitions of a queue.
func ExampleQueue() {
	ctx := context.Background()
	q, err := nats.OpenQueue("nats://127.0.0.1:4222", &nats.QueueOptions{Group: "billing", Partitions: 16})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	c, err := queue.New(ctx, q, "orders", func(ctx context.Context, m queue.Received) error {
		log.Print(m.Key, m.ID, m.Claim.Token()) // a guard compares the token
		return nil
	}, nil)
	if err != nil {
		log.Fatal(err) // such as that no stream has the subjects orders.0 to orders.15
	}
	defer c.Close(ctx)
}
