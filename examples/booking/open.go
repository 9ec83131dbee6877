package main

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// settings say where the databases are.
type settings struct {
	postgres, mariadb string
	hold              time.Duration
}

// An agency books at a hotel and at an airline. Its journal is in the hotel's database
// here; it may be anywhere.
type agency struct {
	rooms          *seller[pgx.Tx]
	seats          *seller[*sql.Tx]
	hotel, airline tcc.Definition[tcc.Want, tcc.Want]
	bookings       *tcc.Engine
	ends           []func()
}

func (a *agency) later(end func()) { a.ends = append(a.ends, end) }

// close ends what was opened, the last first.
func (a *agency) close() {
	for _, end := range slices.Backward(a.ends) {
		end()
	}
}

// open makes the tables that are missing, and serves.
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
	store := journal.NewTable(postgres.Pool(pool), "trip_journal")
	if err := a.createTables(ctx, store.Create); err != nil {
		return err
	}
	j, err := journal.New(store, &journal.Options{Shards: 4})
	if err != nil {
		return err
	}
	a.later(func() { _ = j.Close() })
	c, err := coordinator.New(j, &coordinator.Options{Recheck: 5 * time.Second})
	if err != nil {
		return err
	}
	if a.bookings, err = tcc.New(c, &tcc.Options{Hold: s.hold}, a.hotel, a.airline); err != nil {
		return err
	}
	locks, err := openLocks(ctx, pool, a.later)
	if err != nil {
		return err
	}
	a.serve(c, locks)
	return nil
}

// sellers says how each writes its sales down.
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

// openLocks opens the locks of the hotel's database.
func openLocks(ctx context.Context, pool *pgxpool.Pool, later func(end func())) (*lock.Fenced, error) {
	d, err := postgres.Open(ctx, pool.Config().ConnConfig, &postgres.Options{TTL: 5 * time.Second, Namespace: "trip_lock"})
	if err != nil {
		return nil, err
	}
	later(func() { within(10*time.Second, d.Close) })
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		return nil, err
	}
	later(func() { within(10*time.Second, locks.Close) })
	return locks, nil
}

// serve starts what runs until close: the sweepers, in every process, and what carries
// decisions out, in the process that has the lock. Others wait for it.
func (a *agency) serve(c *coordinator.Coordinator, locks *lock.Fenced) {
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { a.rooms.sweep(ctx, a.bookings.Decide) })
	work.Go(func() { a.seats.sweep(ctx, a.bookings.Decide) })
	work.Go(func() {
		for ctx.Err() == nil { // a claim that was lost is asked for again
			_ = locks.Do(ctx, "bookings", func(ctx context.Context, claim interlock.Claim) error { return c.Run(ctx, claim) })
			pause(ctx, 100*time.Millisecond)
		}
	})
	a.later(func() { stop(); work.Wait() })
}

// createTables makes those that are missing. One process does it at a time.
func (a *agency) createTables(ctx context.Context, journal func(context.Context, interlock.SQL) error) error {
	return a.rooms.in(ctx, func(hotel interlock.SQL) error {
		if err := postgres.TxLock(ctx, hotel, "the tables of examples/booking", 0); err != nil {
			return err
		}
		if err := journal(ctx, hotel); err != nil {
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

// within closes something, and gives up after a while: what is still held expires.
func within(d time.Duration, close func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_ = close(ctx)
}
