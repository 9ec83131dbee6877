package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/history"
)

// A shop has a few pieces left. Each order checks that there is one, and then takes
// it. Between check and act others check too: more is sold than there was. The
// transaction around it does not help.
//
// The remedy is to check in the statement that takes. It changes the row only if enough is left,
// and the number of changed rows is the result.
var oversold = race{
	name:    "oversold",
	symptom: "stock falls below zero, or more tickets are sold than seats",
	remedy:  "guard/stock: Table.Hold, one conditional write",
	system:  onMariaDB,
	prepare: func(ctx context.Context, s systems) error {
		err := s.create(ctx, `create table if not exists race_shelf (item varchar(64) primary key, pieces bigint not null) engine=InnoDB`)
		if err != nil {
			return err
		}
		return s.mariaTx(ctx, func(tx *sql.Tx) error { return pieces.Create(ctx, mysql.Tx(tx)) })
	},
	broken: selling(
		func(ctx context.Context, tx *sql.Tx, item string, n int64) error {
			_, err := tx.ExecContext(ctx, `insert into race_shelf values (?, ?)`, item, n)
			return err
		},
		takeIfThere),
	fixed: selling(
		func(ctx context.Context, tx *sql.Tx, item string, n int64) error {
			return pieces.Set(ctx, mysql.Tx(tx), item, n)
		},
		holdPiece),
	judge: history.CheckCapacity,
	rule:  history.RuleCapacity,
}

var pieces = stock.Table{Name: "race_stock"}

// sale takes one piece in tx, or reports that there is none.
type sale func(ctx context.Context, tx *sql.Tx, item, order string, pause func(string)) (sold bool, err error)

// selling lets all check, and then all take.
func selling(supply func(context.Context, *sql.Tx, string, int64) error, take sale) twin {
	return func(ctx context.Context, s *scene) error {
		item, names := s.name("item"), s.workers(5)
		n := 1 + s.rand.Int64N(int64(len(names)-1))
		err := s.mariaTx(ctx, func(tx *sql.Tx) error { return supply(ctx, tx, item, n) })
		if err != nil {
			return err
		}
		s.state(history.OpCapacity, item, n)
		var actors []actor
		for _, name := range names {
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error {
				call := s.told.Invoke(history.Event{Lane: name, Op: history.OpTake, Key: item, Amount: 1})
				sold := false
				err := s.mariaTx(ctx, func(tx *sql.Tx) (err error) {
					sold, err = take(ctx, tx, item, s.name(name), pause)
					return err
				})
				if err == nil && !sold {
					call.EndWith(refused("none is left"))
					return nil
				}
				call.End(err)
				return err
			}})
		}
		return s.act(ctx, s.rounds(2, names), actors...)
	}
}

func takeIfThere(ctx context.Context, tx *sql.Tx, item, order string, pause func(string)) (sold bool, err error) {
	var left int64
	if err := tx.QueryRowContext(ctx, `select pieces from race_shelf where item = ?`, item).Scan(&left); err != nil || left == 0 {
		return false, err
	}
	pause(fmt.Sprint("pieces left: ", left)) // meanwhile others check
	_, err = tx.ExecContext(ctx, `update race_shelf set pieces = pieces - 1 where item = ?`, item)
	return true, err
}

func holdPiece(ctx context.Context, tx *sql.Tx, item, order string, pause func(string)) (sold bool, err error) {
	err = pieces.Hold(ctx, mysql.Tx(tx), order, time.Minute, stock.Line{Item: item, N: 1})
	if short := new(stock.ShortError); errors.As(err, &short) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pause("one piece is held") // independent of others' actions
	return true, pieces.Confirm(ctx, mysql.Tx(tx), order)
}
