package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/once"
)

// Order asks for units of a product. Seq numbers the orders of a product.
type Order struct {
	ID, Product string
	Units, Seq  int
}

// The defences, in the order in which an order meets them.
const (
	byProduct   = "partition" // the product is the key: one worker at a time has its orders, in order
	byLock      = "lock"      // a lock in Redis: no two workers handle one order at the same time
	byFence     = "fence"     // the token of the partition: the database rejects a worker that lost it
	byInbox     = "inbox"     // the order's id in the same transaction: a repeated order has no effect
	byCondition = "condition" // units are taken by one statement, and only if there are so many
)

var defences = []string{byProduct, byLock, byFence, byInbox, byCondition}

// The tables: marks of the fence, ids of orders, events to be sent.
var (
	marks    = fence.Table{Name: "inventory_marks"}
	handled  = once.Inbox{Name: "inventory_inbox", Consumer: "inventory"}
	outgoing = outbox.Table{Name: "inventory_outbox"}
)

// store handles orders.
type store struct {
	pool    *pgxpool.Pool
	locks   *lock.Fenced
	without map[string]bool
	think   time.Duration         // time of the other work of a handler
	tell    func(what, id string) // reports events
}

// handle takes the units of an order and adds an event about it to the outbox.
func (s *store) handle(ctx context.Context, m queue.Received) error {
	var o Order
	if err := json.Unmarshal(m.Payload, &o); err != nil {
		return queue.Dead(err)
	}
	if s.without[byLock] {
		return s.reserve(ctx, m.Claim, o)
	}
	c, err := s.locks.TryAcquire(ctx, "order/"+o.ID)
	if err != nil {
		s.caught(byLock, o, errors.Is(err, interlock.ErrHeld))
		return err // the queue delivers it again, and counts no attempt if the lock is held
	}
	defer c.Release(context.WithoutCancel(ctx))
	return s.reserve(ctx, m.Claim, o)
}

// reserve runs the transaction of an order.
func (s *store) reserve(ctx context.Context, c interlock.Claim, o Order) error {
	s.tell("begin", o.ID)
	time.Sleep(s.think) // simulates other work; a worker that is stopped here wakes up late
	work := func(ctx context.Context, tx pgx.Tx) error { return s.take(ctx, tx, o) }
	var err error
	if s.without[byFence] {
		// It also ignores the end of the claim, as code without claims does.
		err = pgx.BeginFunc(context.WithoutCancel(ctx), s.pool, func(tx pgx.Tx) error { return work(context.WithoutCancel(ctx), tx) })
	} else {
		err = fence.Tx(ctx, postgres.Pool(s.pool), marks, c, c.Name()+"/"+o.Product, work)
		s.caught(byFence, o, errors.Is(err, interlock.ErrStaleToken) || errors.Is(err, interlock.ErrLost) || errors.Is(err, interlock.ErrExpired))
	}
	s.tell("end", o.ID)
	return err
}

// take makes the effect of an order once: it takes the units, or records that there are too few.
func (s *store) take(ctx context.Context, tx pgx.Tx, o Order) error {
	if s.without[byInbox] {
		return s.effect(ctx, tx, o)
	}
	outcome, err := handled.Once(ctx, postgres.Tx(tx), once.Message{ID: o.ID}, func(ctx context.Context) error { return s.effect(ctx, tx, o) })
	s.caught(byInbox, o, outcome == once.Duplicate)
	return err
}

func (s *store) effect(ctx context.Context, tx pgx.Tx, o Order) error {
	left, err := s.withdraw(ctx, tx, o)
	topic, taken := "inventory-updated", o.Units
	if errors.Is(err, pgx.ErrNoRows) {
		s.caught(byCondition, o, true)
		topic, taken, err = "inventory-insufficient", 0, nil
	}
	if err != nil {
		return err
	}
	// The ledger has no unique constraint, so that the audit sees the effect of a missing defence.
	if _, err := tx.Exec(ctx, `insert into inventory_ledger (id, product, seq, units) values ($1, $2, $3, $4)`, o.ID, o.Product, o.Seq, taken); err != nil {
		return err
	}
	event := outbox.Message{ID: "event-" + o.ID, Topic: topic, Key: o.Product, Payload: fmt.Appendf(nil, `{"order":%q,"left":%d}`, o.ID, left)}
	if s.without[byInbox] {
		event.ID += fmt.Sprint("-", time.Now().UnixNano()) // otherwise the outbox would catch the repetition
	}
	return outgoing.Add(ctx, postgres.Tx(tx), event)
}

// withdraw takes units from stock. If there are too few it returns pgx.ErrNoRows.
func (s *store) withdraw(ctx context.Context, tx pgx.Tx, o Order) (left int, err error) {
	if !s.without[byCondition] {
		err = tx.QueryRow(ctx, `update inventory_shelf set units = units - $2 where product = $1 and units >= $2 returning units`, o.Product, o.Units).Scan(&left)
		return left, err
	}
	if err := tx.QueryRow(ctx, `select units from inventory_shelf where product = $1`, o.Product).Scan(&left); err != nil {
		return 0, err
	}
	if left < o.Units {
		return left, pgx.ErrNoRows
	}
	time.Sleep(s.think) // between check and act
	_, err = tx.Exec(ctx, `update inventory_shelf set units = $2 where product = $1`, o.Product, left-o.Units)
	return left - o.Units, err
}

// caught reports that a defence has blocked an order.
func (s *store) caught(defence string, o Order, yes bool) {
	if yes {
		s.tell(defence, o.ID)
	}
}
