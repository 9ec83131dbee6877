package redis_test

import (
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
)

// A sink for an outbox: the topic orders goes to the stream shop:orders.
func ExampleNewStream() {
	client, err := redis.Dial("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sink := redis.NewStream(client, &redis.StreamOptions{Prefix: "shop:", MaxLen: 1_000_000})
	for _, err := range sink.Publish(ctx, []driver.Message{{ID: "evt-1", Topic: "orders", Key: "order/42", Payload: []byte(`{}`)}}) {
		fmt.Println(err) // consumers act once for each field id: guard/once
	}
}
