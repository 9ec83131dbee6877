package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// side is one of the two sides.
type side bool

const (
	north side = true  // PostgreSQL
	south side = false // MariaDB
)

// Transfer moves cents from an account in the north to one in the south, or back if they
// are negative. Repetitions have the same ID.
type Transfer struct {
	ID, North, South string
	Cents            int64
}

// account is an account to be opened.
type account struct {
	side  side
	name  string
	cents int64
}

// errRefused reports that nothing was moved: the balance is too low, or an account is missing.
var errRefused = errors.New("the transfer is refused")

// way is a method of moving money.
type way interface {
	// move returns nil once it is decided that the money is moved, and errRefused if it is
	// not. After any other error the outcome is unknown: call move again.
	move(ctx context.Context, t Transfer) error
	// settle waits until the transfer is visible on both sides.
	settle(ctx context.Context, id string) error
	// open creates an account unless it exists.
	open(ctx context.Context, db interlock.SQL, a account) error
	balance(ctx context.Context, on side, account string) (cents int64, err error)
	// create creates the missing tables.
	create(ctx context.Context, db interlock.SQL) error
}

// settings are the method, and the addresses of the databases.
type settings struct{ by, postgres, mariadb string }

// connections is the number of a process's connections to the north.
const connections = 8

// bank is a process that moves money.
type bank struct {
	pool *pgxpool.Pool
	db   *sql.DB
	way  way
	ends []func()
}

func (b *bank) later(end func()) { b.ends = append(b.ends, end) }

// close closes all resources in reverse order.
func (b *bank) close() {
	for _, end := range slices.Backward(b.ends) {
		end()
	}
}

// open creates the missing tables and starts serving.
func open(ctx context.Context, s settings) (*bank, error) {
	b := &bank{}
	if err := b.open(ctx, s); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bank) open(ctx context.Context, s settings) (err error) {
	config, err := pgxpool.ParseConfig(s.postgres)
	if err != nil {
		return err
	}
	config.MaxConns = connections
	if b.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	b.later(b.pool.Close)
	if b.db, err = sql.Open("mysql", s.mariadb); err != nil {
		return err
	}
	b.later(func() { _ = b.db.Close() })
	rt, err := txn.Open(ctx, s.postgres, &txn.Options{Journal: "transfer_journal_" + s.by, Shards: 4,
		Locks: txn.LockOptions{TTL: 5 * time.Second}, Coordinator: &coordinator.Options{Recheck: 5 * time.Second}})
	if err != nil {
		return err
	}
	table := money.Name
	switch s.by {
	case "tcc":
		b.way, err = newHeld(rt.Coordinator(), b.pool, b.db)
	case "2pc":
		table = accountTable
		b.way, err = newPrepared(ctx, rt.Coordinator(), b.pool, b.db, b.later)
	default:
		err = fmt.Errorf("-by is %q; use tcc or 2pc", s.by)
	}
	if err != nil {
		return errors.Join(err, rt.Close(ctx))
	}
	b.later(func() { _ = rt.Close(context.Background()) }) // held claims expire
	if err := b.createTables(ctx, table); err != nil {
		return err
	}
	return rt.Start(ctx)
}

// createTables creates the tables unless the named one exists in the north. It does not touch
// existing ones: to create an index again waits for all branches in doubt, and no process
// finishes them before we serve.
func (b *bank) createTables(ctx context.Context, name string) error {
	return b.alone(ctx, func(ctx context.Context, db interlock.SQL) error {
		exists := false
		err := db.Query(ctx, `select to_regclass($1::text) is not null`, []any{name}, func(scan func(...any) error) error { return scan(&exists) })
		if err != nil || exists {
			return err
		}
		if err := b.way.create(ctx, db); err != nil {
			return err
		}
		return within(ctx, mysql.DB(b.db), b.way.create)
	})
}

// openAccounts creates the missing accounts.
func (b *bank) openAccounts(ctx context.Context, accounts ...account) error {
	return b.alone(ctx, func(ctx context.Context, inNorth interlock.SQL) error {
		return within(ctx, mysql.DB(b.db), func(ctx context.Context, inSouth interlock.SQL) error {
			for _, a := range accounts {
				db := inNorth
				if a.side == south {
					db = inSouth
				}
				if err := b.way.open(ctx, db, a); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// alone runs work in the north, while no other process does so.
func (b *bank) alone(ctx context.Context, work func(ctx context.Context, db interlock.SQL) error) error {
	return within(ctx, postgres.Pool(b.pool), func(ctx context.Context, db interlock.SQL) error {
		if err := postgres.TxLock(ctx, db, "the making of examples/transfer", 0); err != nil {
			return err
		}
		return work(ctx, db)
	})
}

// within runs work in a transaction.
func within[T any](ctx context.Context, in interlock.BeginnerAt[T], work func(ctx context.Context, db interlock.SQL) error) error {
	tx, err := in.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // no effect after the commit
	if err := work(ctx, tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
