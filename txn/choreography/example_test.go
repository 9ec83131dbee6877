package choreography_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/choreography"
)

var orders = &choreography.Definition{
	Name:      "order",
	Topic:     "orders",
	Cancelled: "order cancelled",
	Stalled:   time.Minute,
	Steps: []choreography.Step{
		{Done: "order placed", Undone: "order closed"},
		{Done: "stock reserved", Undone: "stock released", Failed: "stock missing"},
		{Done: "card charged", Undone: "card refunded", Failed: "card declined"},
	},
}

// The service that begins a saga does the first step.
func ExampleParticipant_Do() {
	var ctx context.Context
	var pool *pgxpool.Pool
	shop := choreography.Participant{Definition: orders, Step: "order placed"}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return shop.Do(ctx, postgres.Tx(tx), choreography.Event{Saga: "42"}, func(ctx context.Context) ([]byte, error) {
			_, err := tx.Exec(ctx, `insert into orders (id, state) values (42, 'placed')`)
			return []byte(`{"order": 42, "item": "book"}`), err
		})
	})
	if err != nil {
		log.Print(err)
	}
}

// Another service reacts to events: its effect, the event that reports it and the end of the
// message are one transaction.
func ExampleParticipant() {
	var pool *pgxpool.Pool
	stock := choreography.Participant{Definition: orders, Step: "stock reserved", Outbox: outbox.Table{}, Barrier: barrier.Table{}}
	handler := queue.InTx(postgres.Pool(pool), func(ctx context.Context, tx pgx.Tx, m queue.Received) error {
		e, ok := orders.Read(m.QueueMessage)
		switch {
		case ok && e.Name == "order placed":
			return stock.Do(ctx, postgres.Tx(tx), e, func(ctx context.Context) ([]byte, error) {
				changed, err := tx.Exec(ctx, `update stock set amount = amount - 1 where item = 'book' and amount > 0`)
				if err == nil && changed.RowsAffected() == 0 {
					err = branch.Fail(errors.New("no book is left")) // emits "stock missing"
				}
				return []byte(`{"item": "book"}`), err
			})
		case ok && orders.Undoes(e.Name):
			return stock.Undo(ctx, postgres.Tx(tx), e, func(ctx context.Context, done []byte) error {
				_, err := tx.Exec(ctx, `update stock set amount = amount + 1 where item = 'book'`)
				return err
			})
		}
		return nil // an event for other services
	})
	_ = handler // for queue.New or queue.Open
}

// The tracker has its own queue, and finds stalled and contradictory sagas.
func ExampleTracker() {
	var ctx context.Context
	var pool *pgxpool.Pool
	tracker := choreography.Tracker{Definition: orders}
	handler := queue.InTx(postgres.Pool(pool), func(ctx context.Context, tx pgx.Tx, m queue.Received) error {
		return tracker.Observe(ctx, postgres.Tx(tx), m.QueueMessage)
	})
	_ = handler // for queue.New or queue.Open

	for range time.Tick(10 * time.Second) {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			found, err := tracker.Reconcile(ctx, postgres.Tx(tx), choreography.Policy{Repeats: 3, Cancel: true})
			for _, s := range found {
				log.Print(s.ID, " is ", s.State, ": ", s.Action, " ", s.Reason) // an operator handles those that are Reported
			}
			return err
		})
		if err != nil {
			log.Print(err) // the next tick tries again
		}
	}
}
