package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/etcd" // etcd:// of the label
	"github.com/interlock-dev/interlock/driver/postgres"
	_ "github.com/interlock-dev/interlock/driver/redis" // redis:// of the shelf
)

// names are the workers. Each holds the thing at its own index, and waits for that of the next one.
var names = []string{"stock", "invoice", "parcel"}

// prepare creates the row.
func prepare(ctx context.Context, s settings) error {
	conn, err := pgx.Connect(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS deadlock_item (id int PRIMARY KEY);
		INSERT INTO deadlock_item VALUES (1) ON CONFLICT DO NOTHING`, pgx.QueryExecModeSimpleProtocol)
	return err
}

// thing can be taken by one task at a time. It blocks, and returns a function that gives it back.
type thing func(ctx context.Context) (give func(), err error)

// locked returns a lock on any system; its waits are published on board.
func locked(board deadlock.Board, locks *lock.Fenced, name string) thing {
	acquire := deadlock.Wrap(deadlock.Resource{Board: board}, locks.Acquire)
	return func(ctx context.Context) (func(), error) {
		claim, err := acquire(ctx, name)
		if err != nil {
			return nil, err
		}
		return func() { _ = claim.Release(ctx) }, nil
	}
}

// row returns the row of an item, locked by a transaction.
func row(board deadlock.Board, pool *pgxpool.Pool, id int) thing {
	return func(ctx context.Context) (func(), error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		rollback := func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }
		drop, err := deadlock.Wait(ctx, deadlock.Resource{Board: board, Name: fmt.Sprint("item ", id)}, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "SELECT FROM deadlock_item WHERE id = $1 FOR UPDATE", id)
			return err
		})
		if err != nil {
			rollback()
			return nil, err
		}
		return func() { rollback(); drop() }, nil
	}
}

// things are the connections of a worker and their close functions.
type things struct{ ends []func() }

func (t *things) later(end func()) { t.ends = append(t.ends, end) }

func (t *things) close() {
	for _, end := range slices.Backward(t.ends) {
		end()
	}
}

// open opens one of the three systems.
func (t *things) open(ctx context.Context, s settings, place int) (thing, error) {
	switch place {
	case 0:
		return t.locked(ctx, s.redis, "deadlock/shelf")
	case 2:
		return t.locked(ctx, s.etcd, "deadlock/label")
	}
	pool, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return nil, err
	}
	t.later(pool.Close)
	return row(postgres.NewKeyValues(pool, postgres.DefaultNamespace+"_kv"), pool, 1), nil
}

func (t *things) locked(ctx context.Context, url, name string) (thing, error) {
	locks, system, err := backend.Build(ctx, url, func(_ *backend.Backend, d driver.Fenced) (*lock.Fenced, error) {
		return lock.NewFenced(d, nil)
	})
	if err != nil {
		return nil, err
	}
	t.later(func() { _ = errors.Join(locks.Close(ctx), system.Close(ctx)) })
	board, _ := system.KeyValues("") // Redis and etcd have them
	return locked(board, locks, name), nil
}

// serve runs a worker: at the command hold it takes its thing, and at await that of the next worker.
// It answers each in one line, and ends with its input.
func serve(ctx context.Context, s settings, as string, in io.Reader, out io.Writer) error {
	place := slices.Index(names, as)
	if place < 0 {
		return fmt.Errorf("there is no worker %q", as)
	}
	var all things
	defer all.close()
	mine, err := all.open(ctx, s, place)
	if err != nil {
		return err
	}
	other, err := all.open(ctx, s, (place+1)%len(names))
	if err != nil {
		return err
	}
	detector := deadlock.New(nil)
	defer detector.Close(ctx)

	var task context.Context
	var give func()
	answers := json.NewEncoder(out)
	for commands := bufio.NewScanner(in); commands.Scan(); {
		r := report{Worker: as}
		var err error
		if commands.Text() == "hold" {
			task = detector.Task(ctx, as, 0)
			give, err = mine(task)
		} else {
			var giveOther func()
			giveOther, err = other(task)
			if err == nil {
				giveOther()
			}
			give()
		}
		var cycle *deadlock.Error
		if errors.As(err, &cycle) {
			r.Cycle = cycle.Cycle
		} else if err != nil {
			r.Error = err.Error()
		}
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
