package nats_test

import (
	"context"
	"log"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/nats"
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
			log.Print(err) // interlock.Kind(err) says whether the message may have arrived
		}
	}
}
