package sequence_test

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/observe"
)

// Events come out of order, twice, and one of them late.
func ExampleSequencer() {
	ctx := context.Background()
	passed := make(chan struct{})
	s, err := sequence.New("orders", &sequence.Memory{}, func(_ context.Context, _ struct{}, d sequence.Delivery) error {
		fmt.Printf("%s %s late=%v\n", d.Key, d.Payload, d.Late)
		return nil
	}, &sequence.Options{
		Wait:    10 * time.Millisecond,
		Settled: func(sequence.Event, sequence.Outcome) { close(passed) },
		Observe: &observe.Sequence{Recorded: func(g observe.SequenceGap) { fmt.Println("hole", g.From, "to", g.To) }},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)
	offer := func(seq int64, state string) {
		outcome, err := s.Offer(ctx, sequence.Event{Key: "order/7", Position: sequence.Position{Seq: seq}, Payload: []byte(state)})
		fmt.Println(seq, outcome, err)
	}
	offer(1, "created")
	offer(1, "created")
	offer(3, "shipped")
	<-passed
	offer(2, "paid")
	// Output:
	// order/7 created late=false
	// 1 delivered <nil>
	// 1 duplicate <nil>
	// 3 held <nil>
	// hole 2 to 2
	// order/7 shipped late=false
	// order/7 paid late=true
	// 2 late <nil>
}

// The position, the hole and the effect are in one transaction, and a late event
// passes the version guard there: it is not applied over a newer one.
func ExampleInTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store := sequence.InTx(postgres.Pool(pool), sequence.Table{})
	s, err := sequence.New("orders", store, func(ctx context.Context, tx pgx.Tx, d sequence.Delivery) error {
		stamp := version.Stamp{Version: d.Epoch<<40 | d.Seq} // has the order of the position
		outcome, err := version.Table{}.Apply(ctx, postgres.Tx(tx), version.Change{Entity: d.Key, Stamp: stamp})
		if err != nil || outcome != version.Applied {
			return err
		}
		_, err = tx.Exec(ctx, `update orders set state = $1 where id = $2`, string(d.Payload), d.Key)
		return err
	}, &sequence.Options{Halt: true})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)
	outcome, err := s.Offer(ctx, sequence.Event{Key: "order/7", Position: sequence.Position{Seq: 3}, Payload: []byte("paid")})
	switch {
	case outcome.Durable():
		fmt.Println("acknowledge it")
	case outcome == sequence.Held:
		fmt.Println("wait for Options.Settled")
	default:
		fmt.Println("pause, and offer it again:", err)
	}
}

// Messages of a queue are acknowledged when their events are durable. Use that of kafka.OpenQueue or
// nats.OpenQueue.
func ExampleSequencer_Consume() {
	ctx := context.Background()
	messages := memory.NewQueue()
	for _, number := range []string{"2", "1", "one", "3"} {
		if err := messages.Add("orders", queue.Message{ID: "message " + number, Headers: map[string]string{"order": "order/7"}, Payload: []byte(number)}); err != nil {
			log.Fatal(err)
		}
	}
	done := make(chan struct{})
	s, err := sequence.New("orders", &sequence.Memory{}, func(_ context.Context, _ struct{}, d sequence.Delivery) error {
		fmt.Printf("%s %s\n", d.Key, d.Payload)
		if d.Seq == 3 {
			close(done)
		}
		return nil
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)
	source, err := s.Consume(ctx, messages, "orders", func(m queue.Received) (sequence.Event, error) {
		number, err := strconv.ParseInt(string(m.Payload), 10, 64)
		return sequence.Event{Key: m.Headers["order"], Position: sequence.Position{Seq: number}, Payload: m.Payload}, err
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	<-done
	if err := source.Close(ctx); err != nil {
		log.Fatal(err)
	}
	for _, m := range messages.DeadLetters("orders") {
		fmt.Println("dead letter:", m.ID)
	}
	// Output:
	// order/7 1
	// order/7 2
	// order/7 3
	// dead letter: message one
}

// An operator's commands for holes.
func ExampleTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	var table sequence.Table // "interlock_sequence" and "interlock_sequence_hole"
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return table.Create(ctx, postgres.Tx(tx)) })
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		holes, err := table.Open(ctx, postgres.Tx(tx), "orders", 100)
		for _, h := range holes {
			fmt.Println(h.Key, h.Epoch, h.From, h.To, "missing since", h.Opened)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
