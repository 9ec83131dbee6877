package twopc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/twopc"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var errPoor = errors.New("there is not enough")

// Ten move from one bank to another. A hundred would overdraw, and leave nothing. The
// guard is the balance itself, read in the branch that locks it.
func Example() {
	ctx := context.Background()
	north, south := memory.NewParticipant(), memory.NewParticipant()
	atNorth, atSouth := twopc.Define("north", north), twopc.Define("south", south)

	rt, err := txn.Open(ctx, "memory://bank", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	engine, err := twopc.New(rt.Coordinator(), nil, atNorth, atSouth)
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Start(ctx); err != nil {
		log.Fatal(err)
	}

	move := func(id string, amount int64) error {
		return engine.Run(ctx, id, func(ctx context.Context, t *twopc.T) error {
			from, err := atNorth.Join(ctx, t)
			if err != nil {
				return err
			}
			to, err := atSouth.Join(ctx, t)
			if err != nil {
				return err
			}
			if left, err := from.Add("alice", -amount); err != nil || left < -50 {
				return errors.Join(err, errPoor)
			}
			_, err = to.Add("bob", amount)
			return err
		})
	}
	err = move("transfer/1", 10)
	_, waited := engine.Wait(ctx, "transfer/1")
	fmt.Println(err, waited, north.Get("alice"), south.Get("bob"))
	err = move("transfer/2", 100)
	fmt.Println(errors.Is(err, twopc.ErrAborted), errors.Is(err, errPoor), north.Get("alice"), south.Get("bob"))
	// Output:
	// <nil> <nil> -10 10
	// true true -10 10
}

// A transfer from Postgres to MariaDB happens once, however often its message is
// delivered: it commits together with its record. The id identifies the attempt, because
// an id with a recorded abort cannot be used again.
func ExampleEngine_Run() {
	var (
		pool  *pgxpool.Pool            // of the one database
		db    *sql.DB                  // of the other
		c     *coordinator.Coordinator // see the package's example
		inbox = once.Inbox{Consumer: "transfers"}
	)
	transfer := func(ctx context.Context, delivery int) (err error) {
		pg, err := postgres.OpenParticipant(ctx, pool, "bank", nil)
		if err != nil {
			return err
		}
		maria, err := mysql.OpenParticipant(ctx, db, "bank", nil)
		if err != nil {
			return err
		}
		north, south := twopc.Define[pgx.Tx]("north", pg), twopc.Define[*sql.Conn]("south", maria)
		engine, err := twopc.New(c, nil, north, south)
		if err != nil {
			return err
		}
		return engine.Run(ctx, fmt.Sprintf("transfer/42/%d", delivery), func(ctx context.Context, t *twopc.T) error {
			from, err := north.Join(ctx, t)
			if err != nil {
				return err
			}
			_, err = inbox.Once(ctx, postgres.Tx(from), once.Message{ID: "transfer/42"}, func(ctx context.Context) error {
				if _, err := from.Exec(ctx, `update account set balance = balance - 10 where id = 1`); err != nil {
					return err
				}
				to, err := south.Join(ctx, t)
				if err != nil {
					return err
				}
				_, err = to.ExecContext(ctx, `update account set balance = balance + 10 where id = 2`)
				return err
			})
			return err
		})
	}
	_ = transfer
}
