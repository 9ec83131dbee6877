package main

import (
	"context"
	"database/sql"
	"slices"
	"time"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// settings are the addresses of the databases.
type settings struct {
	postgres, mariadb string
	hold              time.Duration
}

// agency books at a hotel and at an airline. Its journal is in the hotel's database in
// this example, but may be anywhere.
type agency struct {
	rooms          *seller[pgx.Tx]
	seats          *seller[*sql.Tx]
	hotel, airline tcc.Definition[tcc.Want, tcc.Want]
	bookings       *tcc.Engine
	ends           []func()
}

func (a *agency) later(end func()) { a.ends = append(a.ends, end) }

// close closes all resources in reverse order.
func (a *agency) close() {
	for _, end := range slices.Backward(a.ends) {
		end()
	}
}

// open creates the missing tables and starts serving.
func open(ctx context.Context, s settings) (*agency, error) {
	a := &agency{}
	if err := a.open(ctx, s); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *agency) open(ctx context.Context, s settings) error {
	pool, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return err
	}
	a.later(pool.Close)
	db, err := sql.Open("mysql", s.mariadb)
	if err != nil {
		return err
	}
	a.later(func() { _ = db.Close() })
	a.sellers(pool, db)
	rt, err := txn.Open(ctx, s.postgres, &txn.Options{Journal: "trip_journal", Shards: 4, Locks: txn.LockOptions{TTL: 5 * time.Second},
		Coordinator: &coordinator.Options{Recheck: 5 * time.Second}})
	if err != nil {
		return err
	}
	a.later(func() { _ = rt.Close(context.Background()) }) // held claims expire
	if a.bookings, err = tcc.New(rt.Coordinator(), &tcc.Options{Hold: s.hold}, a.hotel, a.airline); err != nil {
		return err
	}
	if err := a.createTables(ctx); err != nil {
		return err
	}
	return rt.Start(ctx)
}

// sellers defines how each side records its sales.
func (a *agency) sellers(pool *pgxpool.Pool, db *sql.DB) {
	a.rooms = newSeller(postgres.Pool(pool), func(ctx context.Context, tx pgx.Tx, trip string, w tcc.Want) error {
		_, err := tx.Exec(ctx, `insert into trip_sale values ($1, $2, $3)`, trip, w.Item, w.N)
		return err
	})
	a.seats = newSeller(mysql.DB(db), func(ctx context.Context, tx *sql.Tx, trip string, w tcc.Want) error {
		_, err := tx.ExecContext(ctx, `insert into trip_sale values (?, ?, ?)`, trip, w.Item, w.N)
		return err
	})
	a.define()
}

// createTables creates the missing tables, in one process at a time.
func (a *agency) createTables(ctx context.Context) error {
	return a.rooms.in(ctx, func(hotel interlock.SQL) error {
		if err := postgres.TxLock(ctx, hotel, "the tables of examples/booking", 0); err != nil {
			return err
		}
		const sales = `create table if not exists trip_sale (trip varchar(200) not null, item varchar(100) not null, units bigint not null)`
		create := func(db interlock.SQL) error {
			if err := holding.Create(ctx, db); err != nil {
				return err
			}
			_, err := db.Exec(ctx, sales)
			return err
		}
		if err := create(hotel); err != nil {
			return err
		}
		return a.seats.in(ctx, create)
	})
}
