package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// money is the table of accounts on both sides: an item is an account, a unit a cent. It is
// also the guard, with a row for each transfer.
var money = tcc.Table{Name: "transfer_money"}

// hold is how long money is held for an undecided transfer: after that, money that a dead
// process has left is free, or can be used elsewhere. The default is a
// minute.
const hold = 5 * time.Second

// held moves money by TCC.
type held struct {
	engine     *tcc.Engine
	inNorth    tcc.Holds[pgx.Tx]
	inSouth    tcc.Holds[*sql.Tx]
	take, give map[side]tcc.Definition[tcc.Want, tcc.Want]
}

func newHeld(c *coordinator.Coordinator, pool *pgxpool.Pool, db *sql.DB) (h *held, err error) {
	h = &held{inNorth: tcc.Holds[pgx.Tx]{DB: postgres.Pool(pool), Table: money}, inSouth: tcc.Holds[*sql.Tx]{DB: mysql.DB(db), Table: money}}
	h.take = map[side]tcc.Definition[tcc.Want, tcc.Want]{
		north: tcc.Define("take in the north", h.inNorth.Take()), south: tcc.Define("take in the south", h.inSouth.Take()),
	}
	h.give = map[side]tcc.Definition[tcc.Want, tcc.Want]{
		north: tcc.Define("give in the north", h.inNorth.Give()), south: tcc.Define("give in the south", h.inSouth.Give()),
	}
	h.engine, err = tcc.New(c, &tcc.Options{Hold: hold}, h.take[north], h.take[south], h.give[north], h.give[south])
	return h, err
}

// move holds the money at its source and announces it at its destination. Once both have
// agreed and the decision is stored, it is moved. A refusal is stored under the id.
func (h *held) move(ctx context.Context, t Transfer) error {
	take := h.take[north].Try(tcc.Want{Item: t.North, N: t.Cents})
	give := h.give[south].Try(tcc.Want{Item: t.South, N: t.Cents})
	if t.Cents < 0 {
		take = h.take[south].Try(tcc.Want{Item: t.South, N: -t.Cents})
		give = h.give[north].Try(tcc.Want{Item: t.North, N: -t.Cents})
	}
	_, err := h.engine.Run(ctx, "transfer", t.ID, take, give)
	if errors.Is(err, tcc.ErrCancelled) {
		return errors.Join(errRefused, err) // or it was not decided in time
	}
	return err
}

func (h *held) settle(ctx context.Context, id string) error {
	_, err := h.engine.Wait(ctx, id)
	return err
}

func (h *held) create(ctx context.Context, db interlock.SQL) error { return money.Create(ctx, db) }

func (h *held) open(ctx context.Context, db interlock.SQL, a account) error {
	level, err := money.Show(ctx, db, a.name)
	if err != nil || level != (tcc.Level{}) {
		return err
	}
	return money.Set(ctx, db, a.name, a.cents)
}

func (h *held) balance(ctx context.Context, on side, account string) (cents int64, err error) {
	read := func(ctx context.Context, db interlock.SQL) error {
		level, err := money.Show(ctx, db, account)
		cents = level.Balance()
		return err
	}
	if on == north {
		err = within(ctx, h.inNorth.DB, read)
	} else {
		err = within(ctx, h.inSouth.DB, read)
	}
	return cents, err
}
