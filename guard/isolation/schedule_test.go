package isolation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 30 * time.Second

// A step is one or two statements of a transaction, or its end.
type step func(ctx context.Context, tx driver.Tx[driver.SQL]) error

func commit(ctx context.Context, tx driver.Tx[driver.SQL]) error   { return tx.Commit(ctx) }
func rollback(ctx context.Context, tx driver.Tx[driver.SQL]) error { return tx.Rollback(ctx) }

// write runs a statement.
func write(query string) step {
	return func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
		_, err := tx.Exec(ctx, query)
		return err
	}
}

// read reads a number.
func read(into *int64, query string) step {
	return func(ctx context.Context, tx driver.Tx[driver.SQL]) (err error) {
		*into, err = databases.Value[int64](ctx, tx, query)
		return err
	}
}

// turn is a step of one of the two transactions, 0 or 1.
type turn struct {
	of   int
	step step
}

// course is the result of a schedule.
type course struct {
	waited bool
	errs   [2]error
}

// player is one of the transactions.
type player struct {
	tx   driver.Tx[driver.SQL]
	id   int64      // of its session
	busy chan error // of the running step; nil if none runs
	todo []step     // steps whose turn came while it waited
	over bool       // it has failed and was rolled back
}

// play runs two transactions at a level, in the order of the turns. It skips a
// transaction that waits for a lock, which catches up afterwards.
func play(t *testing.T, db *databases.DB, level driver.Isolation, turns []turn) (c course) {
	t.Helper()
	var players [2]*player
	for i := range players {
		tx := db.Begun(t, level)
		id, err := databases.Value[int64](t.Context(), tx, session[db.Dialect])
		ok(t, err)
		players[i] = &player{tx: tx, id: id}
	}
	for _, turn := range turns {
		players[turn.of].todo = append(players[turn.of].todo, turn.step)
		for i, p := range players {
			c.advance(t, db, i, p)
		}
	}
	testbed.Eventually(t, "both come to their ends", bound, func() bool {
		for i, p := range players {
			c.advance(t, db, i, p)
		}
		return len(players[0].todo)+len(players[1].todo) == 0 && players[0].busy == nil && players[1].busy == nil
	})
	return c
}

// advance runs the steps of p until they are done or wait for the other transaction.
func (c *course) advance(t *testing.T, db *databases.DB, i int, p *player) {
	t.Helper()
	for p.busy != nil || len(p.todo) > 0 {
		if p.busy == nil {
			next, done := p.todo[0], make(chan error, 1)
			p.todo, p.busy = p.todo[1:], done
			if p.over {
				p.busy = nil
				continue
			}
			go func() { done <- next(t.Context(), p.tx) }()
		}
		err, waits := p.outcome(t, db)
		if waits {
			c.waited = true
			return
		}
		p.busy = nil
		if err != nil {
			c.errs[i], p.over = err, true
			_ = p.tx.Rollback(t.Context())
		}
	}
}

// outcome returns the result of the running step, or that it waits for a lock.
func (p *player) outcome(t *testing.T, db *databases.DB) (err error, waits bool) {
	t.Helper()
	testbed.Eventually(t, "a step ends, or waits", bound, func() bool {
		select {
		case err = <-p.busy:
			return true
		case <-time.After(time.Millisecond):
			waits = waiting(t, db, p.id)
			return waits
		}
	})
	return err, waits
}

// session is the query for the id of the own session.
var session = map[driver.Dialect]string{
	driver.Postgres: `select pg_backend_pid()::bigint`,
	driver.MariaDB:  `select connection_id()`,
}

// waiting reports whether the server shows a session as waiting for a lock.
func waiting(t *testing.T, db *databases.DB, id int64) bool {
	t.Helper()
	if db.Dialect == driver.Postgres {
		return databases.One[int64](t, db, `select count(*) from pg_stat_activity where pid = $1::bigint and wait_event_type = 'Lock'`, id) == 1
	}
	// The lists of transactions are refreshed only at intervals; this one always is.
	var text string
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return sql.Query(ctx, `show engine innodb status`, nil, func(scan func(...any) error) error {
			var kind, name string
			return scan(&kind, &name, &text)
		})
	})
	for _, trx := range strings.Split(text, "---TRANSACTION ")[1:] {
		if strings.Contains(trx, "LOCK WAIT") && strings.Contains(trx, fmt.Sprintf("thread id %d,", id)) {
			return true
		}
	}
	return false
}

// code returns an error's code in the database's manual.
func code(err error) string {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return fmt.Sprint(err)
	}
	var mysql interface{ Unwrap() error }
	if errors.As(err, &mysql) {
		if _, number, ok := strings.Cut(err.Error(), "Error "); ok {
			number, _, _ = strings.Cut(number, " ")
			return number
		}
	}
	return state.SQLState()
}

var ok = testbed.OK
