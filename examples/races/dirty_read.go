package main

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/guard/isolation"
	"github.com/interlock-dev/interlock/history"
)

// A transaction changes a price and is rolled back. Meanwhile, readers at READ
// UNCOMMITTED have seen the price and sold at it, although it was never committed.
// PostgreSQL has no such level; MariaDB has, and some pools set it "for
// speed".
//
// The remedy is any higher level: the readers then see the last committed price,
// and do not block.
var dirtyRead = race{
	name:    "dirty-read",
	symptom: "a decision used a value that is in no backup and no log",
	remedy:  "guard/isolation: Do, at READ COMMITTED or higher",
	system:  onMariaDB,
	prepare: func(ctx context.Context, s systems) error {
		return s.create(ctx, `create table if not exists race_price (item varchar(64) primary key, price bigint not null) engine=InnoDB`)
	},
	broken: pricing(interlock.ReadUncommitted),
	fixed:  pricing(interlock.ReadCommitted),
	judge:  history.CheckReads,
	rule:   history.RuleOrigin,
}

// pricing lets the readers read between the change and its rollback.
func pricing(level interlock.Isolation) twin {
	return func(ctx context.Context, s *scene) error {
		item, price := s.name("item"), 1+s.rand.Int64N(100)
		wrong := price + 1 + s.rand.Int64N(100)
		if _, err := s.mariadb.ExecContext(ctx, `insert into race_price values (?, ?)`, item, price); err != nil {
			return err
		}
		s.told.Record(history.Event{Lane: "-", Kind: history.State, Op: history.OpValue, Key: item, Value: strconv.FormatInt(price, 10)})
		actors := []actor{{"clerk", func(ctx context.Context, pause func(string)) error { return reprice(ctx, s, item, wrong, pause) }}}
		readers := s.workers(4)
		for _, name := range readers {
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error { return readPrice(ctx, s, level, name, item) }})
		}
		order := append([]string{"clerk"}, s.shuffled(readers)...)
		return s.act(ctx, append(order, "clerk"), actors...)
	}
}

// reprice changes a price and rolls back.
func reprice(ctx context.Context, s *scene, item string, price int64, pause func(string)) error {
	call := s.told.Invoke(history.Event{Lane: "clerk", Op: history.OpWrite, Key: item, Value: strconv.FormatInt(price, 10)})
	tx, err := s.mariadb.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `update race_price set price = ? where item = ?`, price, item)
	pause("") // meanwhile others read
	if rerr := tx.Rollback(); err == nil {
		err = rerr
	}
	call.Fail("it was rolled back")
	return err
}

func readPrice(ctx context.Context, s *scene, level interlock.Isolation, name, item string) error {
	call := s.told.Invoke(history.Event{Lane: name, Op: history.OpRead, Key: item})
	var price string
	err := isolation.Do(ctx, mysql.DB(s.mariadb), level, nil, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `select price from race_price where item = ?`, item).Scan(&price)
	})
	if err == nil {
		call.OK(price)
	}
	return err
}
