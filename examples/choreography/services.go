package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// box is the outbox of all services. In this example they share one database; services with separate
// databases have an outbox and a barrier in each.
var box = outbox.Table{Name: "choreography_outbox"}

// define returns the saga of an order: all events and their compensations.
func define(topic string) *choreography.Definition {
	return &choreography.Definition{
		Name: "order", Topic: topic, Cancelled: "order cancelled", Stalled: 10 * time.Second,
		Steps: []choreography.Step{
			{Done: "order placed", Undone: "order closed"},
			{Done: "stock reserved", Undone: "stock released", Failed: "stock missing"},
			{Done: "card charged", Undone: "card refunded", Failed: "card declined"},
		},
	}
}

// service is one of the three services.
type service struct {
	*choreography.Definition
	pool *pgxpool.Pool
	step choreography.Participant
	// after is the event that causes the step; do and undo are its effects.
	after    string
	do, undo string
	refusal  string // if do changes nothing
}

// services returns the services of the saga, by name. Each does one step when the previous event
// arrives, and undoes it when an event aborts the saga. They do not call each other.
func services(d *choreography.Definition, pool *pgxpool.Pool) map[string]*service {
	of := func(step string) choreography.Participant {
		return choreography.Participant{Definition: d, Step: step, Outbox: box, Barrier: barrier.Table{Name: "choreography_barrier"}}
	}
	return map[string]*service{
		"shop": {Definition: d, pool: pool, step: of("order placed"),
			do:   `insert into choreography_orders values ($1, 'placed')`,
			undo: `update choreography_orders set state = 'closed' where id = $1`},
		"stock": {Definition: d, pool: pool, step: of("stock reserved"), after: "order placed", refusal: "no piece is left",
			do:   `with one as (update choreography_stock set pieces = pieces - 1 where pieces > 0 returning 1) insert into choreography_parcels select $1 from one`,
			undo: `with gone as (delete from choreography_parcels where id = $1 returning 1) update choreography_stock set pieces = pieces + (select count(*) from gone)`},
		"card": {Definition: d, pool: pool, step: of("card charged"), after: "stock reserved", refusal: "the card has no cover",
			do:   `insert into choreography_charges select $1::text where $1::text::int % 3 <> 0`, // every third card is declined
			undo: `delete from choreography_charges where id = $1`},
	}
}

// handle reacts to an event. The effect and its event are one transaction, behind a barrier: a
// repeated message has no second effect, and sends the same event again.
func (s *service) handle(ctx context.Context, m queue.Received) error {
	e, ok := s.Read(m.QueueMessage)
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		switch {
		case ok && e.Name == s.after:
			return s.begin(ctx, tx, e)
		case ok && s.Undoes(e.Name):
			return s.step.Undo(ctx, postgres.Tx(tx), e, func(ctx context.Context, _ []byte) error {
				_, err := tx.Exec(ctx, s.undo, e.Saga)
				return err
			})
		}
		return nil // an event of another service
	})
}

// begin does the step.
func (s *service) begin(ctx context.Context, tx pgx.Tx, cause choreography.Event) error {
	return s.step.Do(ctx, postgres.Tx(tx), cause, func(ctx context.Context) ([]byte, error) {
		changed, err := tx.Exec(ctx, s.do, cause.Saga)
		if err == nil && changed.RowsAffected() == 0 {
			err = branch.Fail(errors.New(s.refusal)) // emits the event of the failure
		}
		return nil, err
	})
}

// watcher reads the same events and tracks the state of each saga.
type watcher struct {
	choreography.Tracker
	pool *pgxpool.Pool
}

func (w watcher) handle(ctx context.Context, m queue.Received) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return w.Observe(ctx, postgres.Tx(tx), m.QueueMessage) })
}

// reconcile sends the events of stalled sagas again, until ctx ends.
func (w watcher) reconcile(ctx context.Context) {
	for ticker := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		_ = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { // the next tick tries again
			_, err := w.Reconcile(ctx, postgres.Tx(tx), choreography.Policy{Repeats: 100})
			return err
		})
	}
}

// create creates empty tables, with the given number of pieces in stock.
func create(ctx context.Context, pool *pgxpool.Pool, t choreography.Tracker, pieces int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		db := postgres.Tx(tx)
		err := errors.Join(box.Create(ctx, db), barrier.Table{Name: "choreography_barrier"}.Create(ctx, db), t.Create(ctx, db))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			create table if not exists choreography_orders (id text primary key, state text not null);
			create table if not exists choreography_stock (pieces int not null);
			create table if not exists choreography_parcels (id text primary key);
			create table if not exists choreography_charges (id text primary key);
			delete from choreography_outbox; delete from choreography_barrier;
			delete from choreography_tracker; delete from choreography_tracker_event;
			delete from choreography_orders; delete from choreography_stock; delete from choreography_parcels; delete from choreography_charges;
			insert into choreography_stock values (`+strconv.Itoa(pieces)+`)`)
		return err
	})
}

var errConvicted = errors.New("the audit found errors")

// audit compares the data of the services with the tracker's. A completed order has one parcel and
// one charge. A compensated one has neither and is closed. No piece is lost.
func audit(ctx context.Context, pool *pgxpool.Pool, t choreography.Tracker, orders, pieces int) (report string, err error) {
	var sagas []choreography.Saga
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		sagas, err = t.List(ctx, postgres.Tx(tx), choreography.Filter{Limit: orders + 1})
		return err
	})
	if err != nil {
		return "", err
	}
	completed := 0
	var wrong []error
	for _, s := range sagas {
		var state string
		var parcels, charges int
		err := pool.QueryRow(ctx, `select state, (select count(*) from choreography_parcels p where p.id = o.id), (select count(*) from choreography_charges c where c.id = o.id)
			from choreography_orders o where id = $1`, s.ID).Scan(&state, &parcels, &charges)
		want := fmt.Sprint("placed", 1, 1)
		if s.State == choreography.Compensated {
			want = fmt.Sprint("closed", 0, 0)
		} else {
			completed++
		}
		if got := fmt.Sprint(state, parcels, charges); err != nil || got != want {
			wrong = append(wrong, fmt.Errorf("order %s is %s (%s), and has: %s, %w", s.ID, s.State, s.Reason, got, errors.Join(errConvicted, err)))
		}
	}
	var left int
	if err := pool.QueryRow(ctx, `select pieces from choreography_stock`).Scan(&left); err != nil {
		return "", err
	}
	if len(sagas) != orders || left != pieces-completed {
		wrong = append(wrong, fmt.Errorf("%w: %d sagas of %d orders; %d pieces are left of %d, and %d orders are completed", errConvicted, len(sagas), orders, left, pieces, completed))
	}
	return fmt.Sprintf("%d orders: %d completed, %d compensated; %d pieces left", orders, completed, len(sagas)-completed, left), errors.Join(wrong...)
}
