package main

import (
	"context"
	"database/sql"

	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/history"
)

// A broker delivers a message again, because its acknowledgement was late, while
// the first consumer still handles it. Each consumer checks whether the message was
// handled, finds that it was not, and books it: twice. The check and the mark are
// two steps, and others run between them.
//
// The remedy is to mark first, under a unique key and in the transaction of the
// effect. The second consumer waits for the first, and then finds the mark.
var duplicate = race{
	name:    "duplicate",
	symptom: "a customer is charged or mailed twice for one message",
	remedy:  "guard/once: Tx, whose mark commits with the effect",
	system:  onMariaDB,
	prepare: func(ctx context.Context, s systems) error {
		err := s.create(ctx,
			`create table if not exists race_ledger (id bigint auto_increment primary key, message varchar(64) not null, amount bigint not null, key (message)) engine=InnoDB`,
			`create table if not exists race_handled (message varchar(64) primary key) engine=InnoDB`)
		if err != nil {
			return err
		}
		return s.mariaTx(ctx, func(tx *sql.Tx) error { return inbox.Create(ctx, mysql.Tx(tx)) })
	},
	broken: delivering(bookUnlessHandled),
	fixed:  delivering(bookOnce),
	judge:  history.CheckEffects,
	rule:   history.RuleOnce,
}

var inbox = once.Inbox{Name: "race_inbox", Consumer: "ledger"}

// delivering delivers one message to several consumers at the same time.
func delivering(consume func(ctx context.Context, s *scene, message string, amount int64, pause func(string)) error) twin {
	return func(ctx context.Context, s *scene) error {
		message, amount, names := s.name("message"), 1+s.rand.Int64N(100), s.workers(4)
		var actors []actor
		for _, name := range names {
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error {
				call := s.told.Invoke(history.Event{Lane: name, Op: history.OpAsk, ID: message})
				err := consume(ctx, s, message, amount, pause)
				call.End(err)
				return err
			}})
		}
		if err := s.act(ctx, s.rounds(2, names), actors...); err != nil {
			return err
		}
		return s.audit(ctx, message)
	}
}

// audit records each booking of a message.
func (s *scene) audit(ctx context.Context, message string) error {
	var n int
	err := s.mariadb.QueryRowContext(ctx, `select count(*) from race_ledger where message = ?`, message).Scan(&n)
	for range n {
		s.told.Record(history.Event{Lane: "-", Kind: history.State, Op: history.OpEffect, ID: message})
	}
	return err
}

func bookUnlessHandled(ctx context.Context, s *scene, message string, amount int64, pause func(string)) error {
	return s.mariaTx(ctx, func(tx *sql.Tx) error {
		var handled int
		err := tx.QueryRowContext(ctx, `select count(*) from race_handled where message = ?`, message).Scan(&handled)
		if err != nil || handled > 0 {
			return err
		}
		pause("nobody has handled it") // meanwhile another consumer checks
		if err := book(ctx, tx, message, amount); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `insert into race_handled values (?) on duplicate key update message = message`, message)
		return err
	})
}

func bookOnce(ctx context.Context, s *scene, message string, amount int64, pause func(string)) error {
	_, err := once.Tx(ctx, mysql.DB(s.mariadb), inbox, once.Message{ID: message}, func(ctx context.Context, tx *sql.Tx) error {
		pause("nobody has handled it") // meanwhile another consumer waits for the mark
		return book(ctx, tx, message, amount)
	})
	return err
}

func book(ctx context.Context, tx *sql.Tx, message string, amount int64) error {
	_, err := tx.ExecContext(ctx, `insert into race_ledger (message, amount) values (?, ?)`, message, amount)
	return err
}
