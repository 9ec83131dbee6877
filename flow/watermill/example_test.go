package watermill_test

import (
	"context"
	"log"

	upstream "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/watermill"
)

// A router handles what a transaction published.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://127.0.0.1/shop")
	if err != nil {
		log.Fatal(err)
	}
	err = queue.Tx(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
		m := message.NewMessageWithContext(ctx, "order-7-created", []byte(`{"state":"created"}`))
		m.Metadata.Set(watermill.MetadataKey, "order/7") // the key whose order counts
		return watermill.NewQueuePublisher(postgres.Tx(tx), queue.Table{}).Publish("orders", m)
	})
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, upstream.NewSlogLogger(nil))
	if err != nil {
		log.Fatal(err)
	}
	subscriber := watermill.NewSubscriber(queue.FromTable(postgres.Pool(pool), queue.Table{}, nil), nil)
	router.AddConsumerHandler("ship", "orders", subscriber, func(m *message.Message) error {
		log.Printf("ship %s", m.Payload)
		return nil
	})
	log.Fatal(router.Run(ctx))
}
