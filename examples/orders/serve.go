package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

const (
	shards      = 4                // of the journal, and slices of the outbox
	ttl         = 5 * time.Second  // how long a stopped process keeps its shards
	recheck     = 5 * time.Second  // after which an order without a visible driver is checked
	goodbye     = 10 * time.Second // how long a closing process waits for its work in progress
	journalName = "shop_journal"
)

// start joins the processes that share the work. Each shard of the journal has one owner,
// which drives its orders and sends its letters. The others take over the shards of a dead
// process. leave stops everything that was started.
func (s *shop) start(ctx context.Context) (leave func(), err error) {
	var ends []func()
	leave = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	j, err := journal.New(journal.NewTable(postgres.Pool(s.pool), journalName), &journal.Options{Shards: shards})
	if err != nil {
		return nil, err
	}
	ends = append(ends, func() { _ = j.Close() })
	c, err := coordinator.New(j, &coordinator.Options{Recheck: recheck})
	if err != nil {
		return nil, err
	}
	if s.engine, err = saga.New(c, nil, s.orders); err != nil {
		return nil, err
	}
	relay, err := outbox.NewRelay(postgres.Pool(s.pool), outgoing, outbox.Func(s.deliver), &outbox.Options{MaxPoll: 200 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	d, err := postgres.Open(ctx, s.pool.Config().ConnConfig, &postgres.Options{TTL: ttl, Namespace: "shop_lock"})
	if err != nil {
		return nil, err
	}
	ends = append(ends, func() { within(goodbye, d.Close) })
	group, err := partition.Join(ctx, d, postgres.NewValues(s.pool, "shop_member"), "shop", partition.Layout{Partitions: shards}, &partition.Options{
		Work: func(ctx context.Context, p partition.Partition) error { return work(ctx, p, c, relay) },
	})
	if err != nil {
		return nil, err
	}
	ends = append(ends, func() { within(goodbye, group.Leave) })
	return leave, nil
}

// work runs in the owner of a partition: it drives a shard and empties a slice. When one
// of the two ends, it ends the other.
func work(ctx context.Context, p partition.Partition, c *coordinator.Coordinator, relay *outbox.Relay) error {
	ctx, end := context.WithCancelCause(ctx)
	var both sync.WaitGroup
	both.Go(func() { end(c.Serve(ctx, p.Claim, p.Index)) })
	both.Go(func() { end(relay.RunOf(ctx, p.Claim, p.Index, p.Layout.Count())) })
	both.Wait()
	return context.Cause(ctx)
}

// within closes a resource within a time limit; held claims expire.
func within(d time.Duration, close func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_ = close(ctx)
}

// createTables creates the missing tables, with a few lamps and a card.
func createTables(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		db := postgres.Tx(tx)
		if err := postgres.TxLock(ctx, db, "the tables of examples/orders", 0); err != nil { // one process at a time
			return err
		}
		for _, create := range []func(context.Context, interlock.SQL) error{
			journal.NewTable(postgres.Pool(pool), journalName).Create,
			shopCalls.Create, bankCalls.Create, outgoing.Create, arrived.Create,
		} {
			if err := create(ctx, db); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `
			create table if not exists shop_stock (item text primary key, units int not null check (units >= 0));
			create table if not exists shop_parcel (id bigserial primary key, customer text not null, item text not null, units int not null);
			create table if not exists shop_letter (customer text not null, words text not null);
			create table if not exists bank_account (card text primary key, cents int not null check (cents >= 0));
			insert into shop_stock values ('lamp', 10) on conflict do nothing;
			insert into bank_account values ('visa', 10000) on conflict do nothing`)
		return err
	})
}
