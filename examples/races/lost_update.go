package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/history"
)

// Several workers add to one balance. Each reads it, adds in the program and writes
// the sum. A worker that read before another one wrote overwrites that: the money is
// lost, and no statement has failed. A transaction around it does not help at READ
// COMMITTED.
//
// The remedy is a conditional write. The row has a version, and the UPDATE names the one that was
// read. A worker that finds another version reads again.
var lostUpdate = race{
	name:    "lost-update",
	symptom: "a balance or counter is lower than what was added to it",
	remedy:  "guard/version: Update, which compares and sets",
	system:  onPostgres,
	prepare: func(ctx context.Context, s systems) error {
		return s.create(ctx, `create table if not exists race_account (id text primary key, balance bigint not null, version bigint not null)`)
	},
	broken: deposits(depositBlindly),
	fixed:  deposits(depositOnTop),
	judge:  history.CheckUpdates,
	rule:   history.RuleTotal,
}

// deposits lets all workers read, and then all write.
func deposits(deposit func(ctx context.Context, s *scene, account string, amount int64, pause func(string)) error) twin {
	return func(ctx context.Context, s *scene) error {
		account, start := s.name("account"), s.rand.Int64N(100)
		if _, err := s.postgres.Exec(ctx, `insert into race_account values ($1, $2, 1)`, account, start); err != nil {
			return err
		}
		s.state(history.OpTotal, account, start)
		names := s.workers(4)
		var actors []actor
		for _, name := range names {
			amount := 1 + s.rand.Int64N(50)
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error {
				call := s.told.Invoke(history.Event{Lane: name, Op: history.OpAdd, Key: account, Amount: amount})
				err := deposit(ctx, s, account, amount, pause)
				call.End(err)
				return err
			}})
		}
		if err := s.act(ctx, s.rounds(2, names), actors...); err != nil {
			return err
		}
		var total int64
		err := s.postgres.QueryRow(ctx, `select balance from race_account where id = $1`, account).Scan(&total)
		s.state(history.OpTotal, account, total)
		return err
	}
}

func depositBlindly(ctx context.Context, s *scene, account string, amount int64, pause func(string)) error {
	return pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error {
		var balance int64
		if err := tx.QueryRow(ctx, `select balance from race_account where id = $1`, account).Scan(&balance); err != nil {
			return err
		}
		pause(fmt.Sprint("the balance is ", balance)) // meanwhile another worker does the same
		_, err := tx.Exec(ctx, `update race_account set balance = $2 where id = $1`, account, balance+amount)
		return err
	})
}

var accounts = version.Rows[int64]{
	Table: "race_account", Key: "id", Version: "version",
	Columns: []string{"balance"},
	Fields:  func(balance *int64) []any { return []any{balance} },
}

func depositOnTop(ctx context.Context, s *scene, account string, amount int64, pause func(string)) error {
	updater, err := version.NewUpdater(&version.Options{Attempts: 20, First: time.Millisecond})
	if err != nil {
		return err
	}
	return version.Update(ctx, updater, postgres.Pool(s.postgres), accounts, account, func(_ context.Context, balance *int64) error {
		pause(fmt.Sprint("the balance is ", *balance)) // meanwhile another worker does the same
		*balance += amount
		return nil
	})
}
