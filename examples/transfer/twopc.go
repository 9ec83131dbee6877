package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// namespace distinguishes our branches from those of other journals, on both servers, permanently.
const namespace = "transfer"

const accountTable = "transfer_account"

// moved is the guard: the ids of completed transfers. It is in the north, and its record is
// committed with the transfer.
var moved = once.Inbox{Name: "transfer_inbox", Consumer: "transfers"}

// quick sets how long a branch waits for its decision before a process decides to abort, and
// the interval of checks. The defaults are a minute and ten seconds.
var quick = &twopc.Options{Prepare: 2 * time.Second, Patience: 3 * time.Second, Scan: 500 * time.Millisecond}

// prepared moves money by two-phase commit.
type prepared struct {
	engine  *twopc.Engine
	pool    *pgxpool.Pool
	db      *sql.DB
	inNorth twopc.Definition[pgx.Tx]
	inSouth twopc.Definition[*sql.Conn]
	// Half of the connections are for work: a connection that waits for a row waits for a
	// branch that must be committed over one of the others.
	places chan struct{}
}

func newPrepared(ctx context.Context, c *coordinator.Coordinator, pool *pgxpool.Pool, db *sql.DB, later func(end func())) (*prepared, error) {
	pg, err := postgres.OpenParticipant(ctx, pool, namespace, nil)
	if err != nil {
		return nil, err
	}
	maria, err := mysql.OpenParticipant(ctx, db, namespace, nil)
	if err != nil {
		return nil, err
	}
	later(maria.Close)
	p := &prepared{pool: pool, db: db, places: make(chan struct{}, connections/2), inNorth: twopc.Define[pgx.Tx]("north", pg), inSouth: twopc.Define[*sql.Conn]("south", maria)}
	p.engine, err = twopc.New(c, quick, p.inNorth, p.inSouth)
	return p, err
}

// move runs the transfer until it is known to be made or refused. An abort in the journal
// uses up an id of two-phase commit, so each attempt has its own. The guard ensures that
// there is one transfer. A refusal is not
// stored.
func (p *prepared) move(ctx context.Context, t Transfer) (err error) {
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	const tries = 10
	attempt := 1
	for range tries {
		err = p.engine.Run(ctx, fmt.Sprintf("%s/%d", t.ID, attempt), func(ctx context.Context, x *twopc.T) error {
			return p.work(ctx, x, t)
		})
		switch {
		case err == nil, errors.Is(err, errRefused), interlock.Kind(err) == interlock.Bug, ctx.Err() != nil:
			return err
		case errors.Is(err, twopc.ErrAborted):
			attempt++
		}
		pause(ctx, 50*time.Millisecond) // otherwise repeat it to learn the outcome
	}
	return err
}

// work runs a branch in each database. All transfers use the north first, so that no two of
// them deadlock.
func (p *prepared) work(ctx context.Context, x *twopc.T, t Transfer) error {
	tx, err := p.inNorth.Join(ctx, x)
	if err != nil {
		return err
	}
	_, err = moved.Once(ctx, postgres.Tx(tx), once.Message{ID: t.ID}, func(ctx context.Context) error {
		if err := add(ctx, postgres.Tx(tx), t.North, -t.Cents); err != nil {
			return err
		}
		conn, err := p.inSouth.Join(ctx, x)
		if err != nil {
			return err
		}
		return add(ctx, mysql.Session(conn), t.South, t.Cents)
	})
	return err
}

// add changes a balance unless it would fall below 0.
func add(ctx context.Context, db interlock.SQL, account string, cents int64) error {
	update := `update transfer_account set cents = cents + ? where name = ? and cents + ? >= 0`
	if db.Dialect() == interlock.Postgres {
		update = `update transfer_account set cents = cents + $1 where name = $2 and cents + $3 >= 0`
	}
	changed, err := db.Exec(ctx, update, cents, account, cents)
	if err == nil && changed == 0 {
		return errRefused
	}
	return err
}

// settle finds the attempt that was made, and waits until both sides have committed.
func (p *prepared) settle(ctx context.Context, id string) error {
	for attempt := 1; ; attempt++ {
		_, err := p.engine.Wait(ctx, fmt.Sprintf("%s/%d", id, attempt))
		if !errors.Is(err, twopc.ErrAborted) && !errors.Is(err, twopc.ErrNone) || attempt == 10 {
			return err
		}
	}
}

func (p *prepared) create(ctx context.Context, db interlock.SQL) error {
	if db.Dialect() == interlock.Postgres {
		if err := moved.Create(ctx, db); err != nil {
			return err
		}
	}
	_, err := db.Exec(ctx, `create table if not exists transfer_account (name varchar(100) primary key, cents bigint not null)`)
	return err
}

// open reads first, without a lock: the account may be in doubt.
func (p *prepared) open(ctx context.Context, db interlock.SQL, a account) error {
	if _, err := p.balance(ctx, a.side, a.name); !errors.Is(err, sql.ErrNoRows) && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	insert := `insert into transfer_account (name, cents) values (?, ?)`
	if db.Dialect() == interlock.Postgres {
		insert = `insert into transfer_account (name, cents) values ($1, $2)`
	}
	_, err := db.Exec(ctx, insert, a.name, a.cents)
	return err
}

func (p *prepared) balance(ctx context.Context, on side, account string) (cents int64, err error) {
	if on == north {
		err = p.pool.QueryRow(ctx, `select cents from transfer_account where name = $1`, account).Scan(&cents)
	} else {
		err = p.db.QueryRowContext(ctx, `select cents from transfer_account where name = ?`, account).Scan(&cents)
	}
	return cents, err
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
