package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

const (
	shards      = 4               // of the journal
	ttl         = 5 * time.Second // how long a stopped process keeps its shards
	recheck     = 5 * time.Second // after which an order without a visible driver is checked
	journalName = "shop_journal"
)

// start joins the processes that share the work. Each shard of the journal has one owner,
// which drives its orders, and one process sends the letters. The others take over from a
// dead process. leave stops everything that was started.
func (s *shop) start(ctx context.Context) (leave func(), err error) {
	rt, err := txn.Open(ctx, s.database, &txn.Options{Journal: journalName, Shards: shards, Locks: txn.LockOptions{TTL: ttl},
		Coordinator: &coordinator.Options{Recheck: recheck}})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.Start(ctx, s.database, outgoing, outbox.Func(s.deliver), &outbox.Options{MaxPoll: 200 * time.Millisecond})
	if err != nil {
		return nil, errors.Join(err, rt.Close(ctx))
	}
	leave = func() {
		_ = relay.Close(context.Background())
		_ = rt.Close(context.Background()) // held claims expire
	}
	if s.engine, err = saga.New(rt.Coordinator(), nil, s.orders); err == nil {
		err = rt.Start(ctx)
	}
	if err != nil {
		leave()
	}
	return leave, err
}

// createTables creates the missing tables, with a few lamps and a card.
func createTables(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		db := postgres.Tx(tx)
		if err := postgres.TxLock(ctx, db, "the tables of examples/orders", 0); err != nil { // one process at a time
			return err
		}
		for _, create := range []func(context.Context, interlock.SQL) error{
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
			create table if not exists shop_bank_account (card text primary key, cents int not null check (cents >= 0));
			insert into shop_stock values ('lamp', 10) on conflict do nothing;
			insert into shop_bank_account values ('visa', 10000) on conflict do nothing`)
		return err
	})
}
