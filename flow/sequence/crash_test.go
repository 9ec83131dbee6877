package sequence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// consume is a process that offers the events 1, 3, 2, 4 of one epoch and 1 of the next, each until
// it is accepted. 2 arrives after its hole was passed over.
func consume(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	settled := make(chan sequence.Outcome, 1)
	s, err := sequence.New("test", sequence.InTx(crash.Beginner(db, at), sequence.Table{}), record,
		&sequence.Options{Wait: 10 * time.Millisecond, Settled: func(_ sequence.Event, o sequence.Outcome) { settled <- o }})
	if err != nil {
		return err
	}
	for _, p := range []sequence.Position{{Seq: 1}, {Seq: 3}, {Seq: 2}, {Seq: 4}, {Epoch: 1, Seq: 1}} {
		o, err := s.Offer(ctx, sequence.Event{Key: "k", Position: p})
		if o == sequence.Held {
			o = <-settled
		}
		if !o.Durable() {
			return fmt.Errorf("%v is %v: %w", p, o, err)
		}
	}
	return s.Close(ctx)
}

// record is a handler whose effect is a row of its event.
func record(ctx context.Context, db driver.SQL, d sequence.Delivery) error {
	late := ""
	if d.Late {
		late = " late"
	}
	query := `insert into effect (word) values ($1)`
	if db.Dialect() == driver.MariaDB {
		query = `insert into effect (word) values (?)`
	}
	_, err := db.Exec(ctx, query, fmt.Sprint(d.Key, " ", d.Position, late))
	return err
}

// withTables returns a database with the tables of a sequencer and of record.
func withTables(tb testing.TB, db *databases.DB) *databases.DB {
	tb.Helper()
	db.Do(tb, sequence.Table{}.Create)
	id := map[driver.Dialect]string{driver.Postgres: `bigserial`, driver.MariaDB: `bigint auto_increment`}[db.Dialect]
	text := map[driver.Dialect]string{driver.Postgres: `text`, driver.MariaDB: `varchar(600) character set utf8mb4`}[db.Dialect]
	db.Exec(tb, `create table effect (id `+id+` primary key, word `+text+` not null)`)
	return db
}

// effects returns the committed effects of the handler, in order.
func effects(tb testing.TB, db *databases.DB) string {
	tb.Helper()
	words := map[driver.Dialect]string{
		driver.Postgres: `select coalesce(string_agg(word, ', ' order by id), '') from effect`,
		driver.MariaDB:  `select concat_ws(' ', group_concat(word order by id separator ', ')) from effect`,
	}
	return databases.One[string](tb, db, words[db.Dialect])
}

// TestCrashes kills the consumer at every statement, the databases in turn. The same
// events, offered again, have the same effects, each once and in the same order.
func TestCrashes(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		part := 0
		if strings.Contains(t.Name(), "mariadb") {
			part = 1
		}
		points := crash.Share(t, "consumer", part, 2, func(tb testing.TB) crash.Scene {
			db := withTables(tb, open(tb))
			return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
				tb.Helper()
				if got := effects(tb, db); got != "k 0:1, k 0:3, k 0:2 late, k 0:4, k 1:1" {
					tb.Errorf("effects: %s", got)
				}
				at := where(tb, db, "k")
				if at != (sequence.State{Position: sequence.Position{Epoch: 1, Seq: 1}}) {
					tb.Errorf("the key is at %+v", at)
				}
				if n := databases.One[int64](tb, db, `select count(*) from interlock_sequence_hole
					where epoch = 0 and from_seq = 2 and to_seq = 2 and closed_at is not null`); n != 1 {
					tb.Errorf("%d closed holes at 2", n)
				}
				if n := databases.One[int64](tb, db, `select count(*) from interlock_sequence_hole`); n != 1 {
					tb.Errorf("%d holes", n)
				}
			}}
		})
		if points < 25 {
			t.Errorf("only %d points", points)
		}
	}, databases.Pgx, databases.Maria)
}

func where(tb testing.TB, db *databases.DB, key string) (s sequence.State) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, tx driver.SQL) (err error) {
		s, err = sequence.Table{}.Position(ctx, tx, "test", key)
		return err
	})
	return s
}
