package sqs_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/sqs"
)

// A relay of package outbox calls Publish; consumers act once for each id: guard/once.
func Example() {
	ctx := context.Background()
	settings, err := config.LoadDefaultConfig(ctx) // region and credentials of the AWS SDK
	if err != nil {
		log.Fatal(err)
	}
	sink, err := sqs.OpenSink(settings, "*.fifo", nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range sink.Publish(ctx, []driver.Message{
		{ID: "order-42-created", Topic: "orders", Key: "order/42", Payload: []byte(`{"state":"created"}`)}}) {
		if err != nil {
			log.Print(err) // interlock.Kind(err) is Uncertain if the message may have arrived
		}
	}
}
