package queue_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/transact"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"consumer": play}) }

// worker is a consumer of one table, whose messages are a1 to a3, b1, b2, c1 and one without a key.
type worker struct {
	db       driver.BeginnerAt[driver.SQL]
	table    queue.Table
	consumer driver.QueueConsumer
}

// play adds messages and consumes them until none but a parked one is left. Each step follows the one
// before, so that the points are the same in every run.
func play(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	w := &worker{db: crash.BeginnerAt(db, at), table: queue.Table{Name: args[2]}}
	// The leases of the run before expire now.
	if err := w.in(ctx, db, func(tx driver.SQL) error {
		_, err := tx.Exec(ctx, `update `+args[2]+`_group set ready_at = 1 where state & 1 = 1`)
		return err
	}); err != nil {
		return err
	}
	if err := w.add(ctx, args[2]); err != nil {
		return err
	}
	w.consumer, err = queue.FromTable(w.db, w.table, nil).Join(ctx, "q", driver.QueueOptions{Lease: time.Hour})
	for err == nil {
		var left int64
		if err = w.in(ctx, db, func(tx driver.SQL) error {
			left, err = databases.Value[int64](ctx, tx, `select count(*) from `+args[2])
			return err
		}); err == nil && left == 1 {
			return w.consumer.Close(ctx)
		}
		if err == nil {
			err = w.work(ctx)
		}
	}
	return err
}

func (w *worker) in(ctx context.Context, db driver.BeginnerAt[driver.SQL], work func(tx driver.SQL) error) error {
	return transact.Do(ctx, transact.At(db, driver.ReadCommitted), "", func(tx driver.Tx[driver.SQL]) error { return work(tx.Native()) })
}

// add adds the messages, with a row that says so.
func (w *worker) add(ctx context.Context, name string) error {
	return w.in(ctx, w.db, func(tx driver.SQL) error {
		n, err := databases.Value[int64](ctx, tx, `select count(*) from added where name = '`+name+`'`)
		if err != nil || n > 0 {
			return err
		}
		var all []queue.Message
		for _, id := range []string{"a1", "a2", "b1", "c1", "a3", "b2"} {
			all = append(all, queue.Message{ID: id, Key: id[:1]})
		}
		if err := w.table.Add(ctx, tx, "q", append(all, queue.Message{ID: "z1"})...); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into added (name) values ('`+name+`')`)
		return err
	})
}

// work receives some messages, has their effects in one transaction and settles them. The first attempt
// of a2 fails, b1 is a dead letter, and c1 is parked. So a transaction has one message or two.
func (w *worker) work(ctx context.Context) error {
	some, err := w.consumer.Receive(ctx, driver.QueueLimit{Messages: 4, Bytes: 100})
	if err != nil {
		return err
	}
	var done []queue.Received
	var settlements []driver.Settlement
	held := map[string]bool{}
	for _, m := range some {
		s := driver.Settlement{Received: m, Outcome: driver.Ack}
		switch {
		case held[m.Key]:
			s.Outcome = driver.Release
		case m.ID == "a2" && m.Attempt == 1:
			s.Outcome = driver.Retry
		case m.ID == "b1":
			s.Outcome = driver.Dead
		case m.ID == "c1":
			s.Outcome = driver.Park
		default:
			done = append(done, *m)
		}
		held[m.Key] = held[m.Key] || s.Outcome == driver.Retry || s.Outcome == driver.Park
		settlements = append(settlements, s)
	}
	if len(done) > 0 {
		if err := w.effects(ctx, done); err != nil {
			return err
		}
	}
	for _, err := range w.consumer.Settle(ctx, settlements) {
		if err != nil {
			return err
		}
	}
	return nil
}

// effects has the effects of messages, and finishes them.
func (w *worker) effects(ctx context.Context, all []queue.Received) error {
	return w.in(ctx, w.db, func(tx driver.SQL) error {
		for _, m := range all {
			if _, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (name, id, attempt) values ('%s', '%s', %d)`, w.table.Name, m.ID, m.Attempt)); err != nil {
				return err
			}
		}
		return queue.Finish(ctx, tx, all...)
	})
}

// crashScenes gives each run a table of its own. most is how many attempts crashes may cost.
func crashScenes(db *databases.DB, kind string, most int) func(testing.TB) crash.Scene {
	var number atomic.Int64
	return func(tb testing.TB) crash.Scene {
		name := fmt.Sprint("q_", kind, number.Add(1))
		db.Do(tb, queue.Table{Name: name}.Create)
		return crash.Scene{Args: []string{db.Client, db.URL, name}, Want: func(tb testing.TB) {
			tb.Helper()
			var effects []string
			db.Do(tb, func(ctx context.Context, tx driver.SQL) error {
				effects = nil
				return tx.Query(ctx, `select id, attempt from effect where name = '`+name+`' order by n`, nil, func(scan func(...any) error) error {
					var id string
					var attempt int
					if err := scan(&id, &attempt); err != nil {
						return err
					}
					first := 1
					if id == "a2" {
						first = 2
					}
					if attempt < first || attempt > first+most {
						tb.Errorf("the effect of %s is of attempt %d", id, attempt)
					}
					effects = append(effects, id)
					return nil
				})
			})
			var ofA []string
			for _, id := range effects {
				if id[0] == 'a' {
					ofA = append(ofA, id)
				}
			}
			slices.Sort(effects)
			if !slices.Equal(effects, []string{"a1", "a2", "a3", "b2", "z1"}) || !slices.IsSorted(ofA) {
				tb.Errorf("effects %v, those of key a in the order %v", effects, ofA)
			}
			for what, query := range map[string]string{
				"dead letter":      `select count(*) from ` + name + `_dead where message_id = 'b1'`,
				"parked message":   `select count(*) from ` + name + ` m join ` + name + `_group g on g.lane = m.lane where m.message_id = 'c1' and g.state = 2`,
				"message in all":   `select count(*) from ` + name,
				"letter in all":    `select count(*) from ` + name + `_dead`,
				"arrival, and one": `select 1 + count(*) from ` + name + `_arrival`,
			} {
				if n := databases.One[int64](tb, db, query); n != 1 {
					tb.Errorf("%s: %d, want 1", what, n)
				}
			}
		}}
	}
}

// TestCrash kills a process between any two statements of Add, a claim, a transaction with
// effects and a settlement, once and at pairs of places. The process starts again: nothing is
// lost, keys keep their order, no effect happens twice, and crashes count as attempts of the
// first message of a key only.
func TestCrash(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table added (name varchar(64) not null)`)
		number := `n bigint generated by default as identity`
		if db.Dialect == driver.MariaDB {
			number = `n bigint not null auto_increment primary key`
		}
		db.Exec(t, `create table effect (`+number+`, name varchar(64) not null, id varchar(64) not null, attempt int not null)`)
		t.Run("killed once", func(t *testing.T) {
			t.Parallel()
			if points := crash.Share(t, "consumer", crash.Part(t), 2, crashScenes(db, "once", 1)); points < 30 {
				t.Errorf("only %d points", points)
			}
		})
		t.Run("killed twice", func(t *testing.T) {
			t.Parallel()
			crash.Pairs(t, "consumer", 6, crashScenes(db, "twice", 2))
		})
	}, databases.Pgx, databases.Maria)
}
