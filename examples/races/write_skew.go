package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/isolation"
	"github.com/interlock-dev/interlock/history"
)

// Doctors are on call, and each may go home if another one stays. Each checks, sees
// others, and goes: in the end no doctor is on call. Each wrote another row, so
// neither a row version nor snapshots (REPEATABLE READ) detect it: the data that was
// read has changed.
//
// The remedy is SERIALIZABLE. The database detects that the transactions could not have run one
// after the other, and aborts one of them. A loop runs it again. Package guard/isolation shows two
// alternatives: a row for the shift, and locks on all rows that were read.
var writeSkew = race{
	name:    "write-skew",
	symptom: "a rule over several rows is broken, although each change checked it",
	remedy:  "guard/isolation: Serializable, which runs again what the database ended",
	system:  onPostgres,
	prepare: func(ctx context.Context, s systems) error {
		return s.create(ctx, `create table if not exists race_doctor (shift text, name text, on_call bool not null, primary key (shift, name))`)
	},
	broken: goingHome(func(ctx context.Context, s *scene, leave leaving) error {
		return pgx.BeginTxFunc(ctx, s.postgres, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error { return leave(ctx, tx) })
	}),
	fixed: goingHome(func(ctx context.Context, s *scene, leave leaving) error {
		return isolation.Serializable(ctx, postgres.Pool(s.postgres), &isolation.Options{Attempts: 20}, leave)
	}),
	judge: history.CheckCapacity,
	rule:  history.RuleCapacity,
}

// leaving is the transaction of one doctor.
type leaving = func(ctx context.Context, tx pgx.Tx) error

// goingHome lets all check, and then all go.
func goingHome(run func(ctx context.Context, s *scene, leave leaving) error) twin {
	return func(ctx context.Context, s *scene) error {
		shift, names := s.name("shift"), s.workers(4)
		for _, name := range names {
			if _, err := s.postgres.Exec(ctx, `insert into race_doctor values ($1, $2, true)`, shift, name); err != nil {
				return err
			}
		}
		s.state(history.OpCapacity, shift, int64(len(names)-1)) // as many may be at home
		var actors []actor
		for _, name := range names {
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error {
				call := s.told.Invoke(history.Event{Lane: name, Op: history.OpTake, Key: shift, Amount: 1})
				alone := false
				err := run(ctx, s, func(ctx context.Context, tx pgx.Tx) (err error) {
					alone, err = leave(ctx, tx, shift, name, pause)
					return err
				})
				if alone && err == nil {
					call.EndWith(refused("nobody else is on call"))
					return nil
				}
				call.End(err)
				return err
			}})
		}
		return s.act(ctx, s.rounds(2, names), actors...)
	}
}

func leave(ctx context.Context, tx pgx.Tx, shift, name string, pause func(string)) (alone bool, err error) {
	var others int
	err = tx.QueryRow(ctx, `select count(*) from race_doctor where shift = $1 and on_call and name <> $2`, shift, name).Scan(&others)
	if err != nil || others == 0 {
		return true, err
	}
	pause(fmt.Sprint("others on call: ", others)) // meanwhile the others check too
	_, err = tx.Exec(ctx, `update race_doctor set on_call = false where shift = $1 and name = $2`, shift, name)
	return false, err
}
