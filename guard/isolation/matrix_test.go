package isolation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/isolation"
	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// An anomaly is a schedule, and how to tell that it happened. Transaction 0 is the
// first, accounts 1 and 2 have 10 each.
type anomaly struct {
	name, meaning string
	schedule      func() (turns []turn, happened func(final func(string) int64) bool)
}

const (
	readOne = `select v from account where id = 1`
	readTwo = `select v from account where id = 2`
	readSum = `select sum(v) from account`
	count   = `select count(*) from account where v >= 0`
)

var anomalies = []anomaly{
	{"dirty read", "a transaction reads a change that is rolled back later", func() ([]turn, func(func(string) int64) bool) {
		var seen int64
		return []turn{
			{0, write(`update account set v = 99 where id = 1`)}, {1, read(&seen, readOne)}, {0, rollback}, {1, commit},
		}, func(func(string) int64) bool { return seen == 99 }
	}},
	{"non-repeatable read", "a row read twice has two values", func() ([]turn, func(func(string) int64) bool) {
		var before, after int64
		return []turn{
			{0, read(&before, readOne)}, {1, write(`update account set v = 11 where id = 1`)}, {1, commit},
			{0, read(&after, readOne)}, {0, commit},
		}, func(func(string) int64) bool { return before != after }
	}},
	{"read skew", "two rows are read, one before and one after a change of both", func() ([]turn, func(func(string) int64) bool) {
		var one, two int64
		return []turn{
			{0, read(&one, readOne)}, {1, write(`update account set v = 11 where id = 1`)},
			{1, write(`update account set v = 9 where id = 2`)}, {1, commit}, {0, read(&two, readTwo)}, {0, commit},
		}, func(func(string) int64) bool { return one+two != 20 }
	}},
	{"phantom", "a repeated search finds a new row", func() ([]turn, func(func(string) int64) bool) {
		var before, after int64
		return []turn{
			{0, read(&before, count)}, {1, write(`insert into account (id, v) values (3, 10)`)}, {1, commit},
			{0, read(&after, count)}, {0, commit},
		}, func(func(string) int64) bool { return before != after }
	}},
	{"lost update", "two transactions read a value and write it back changed, and one change is lost", func() ([]turn, func(func(string) int64) bool) {
		var a, b int64
		return []turn{
			{0, read(&a, readOne)}, {1, read(&b, readOne)},
			{0, write(`update account set v = 10 + 1 where id = 1`)}, {0, commit},
			{1, write(`update account set v = 10 + 5 where id = 1`)}, {1, commit},
		}, func(final func(string) int64) bool { return final(readOne) == 15 && a == 10 && b == 10 }
	}},
	{"write skew", "two transactions check a rule over several rows, each changes another row, and together they break the rule", func() ([]turn, func(func(string) int64) bool) {
		var a, b int64
		return []turn{
			{0, read(&a, readSum)}, {1, read(&b, readSum)},
			{0, write(`update account set v = v - 10 where id = 1`)}, {1, write(`update account set v = v - 10 where id = 2`)},
			{0, commit}, {1, commit},
		}, func(final func(string) int64) bool { return final(readSum) == 0 && a == 20 && b == 20 }
	}},
}

var levels = []driver.Isolation{driver.ReadUncommitted, driver.ReadCommitted, driver.RepeatableRead, driver.Serializable}

// TestMatrix plays each anomaly at each level, and compares with docs/reference/isolation.md.
func TestMatrix(t *testing.T) {
	t.Parallel()
	cells := map[string]string{} // by dialect, anomaly and level
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table account (id bigint primary key, v bigint not null)`)
		for _, a := range anomalies {
			for _, level := range levels {
				cells[string(db.Dialect)+a.name+level.String()] = a.cell(t, db, level)
			}
		}
	}, databases.Pgx, databases.Maria)
	if t.Failed() || len(cells) < 2*len(anomalies)*len(levels) {
		return // one of the databases was skipped
	}
	generated.Check(t, "../../docs/reference/isolation.md", markdown(cells))
}

// cell plays an anomaly and names the outcome in a word.
func (a anomaly) cell(t *testing.T, db *databases.DB, level driver.Isolation) string {
	t.Helper()
	db.Exec(t, `delete from account`, `insert into account (id, v) values (1, 10), (2, 10)`)
	turns, happened := a.schedule()
	c := play(t, db, level, turns)
	yes := happened(func(query string) int64 { return databases.One[int64](t, db, query) })
	failed := ""
	for _, err := range c.errs {
		if err != nil {
			failed = code(err)
		}
	}
	switch {
	case yes && failed == "":
		return "**happens**"
	case failed != "" && c.waited:
		return "waits, then error " + failed
	case failed != "":
		return "error " + failed
	case c.waited:
		return "waits"
	}
	return "not visible"
}

// markdown returns the page.
func markdown(cells map[string]string) string {
	var b strings.Builder
	b.WriteString(`# What each isolation level permits

<!-- Written by: go test ./guard/isolation -run TestMatrix -update -->

Two transactions run at the same level, in an order that causes the anomaly if the level permits it. The servers are
PostgreSQL 15 and MariaDB 10.11 with their default settings. The same test compares this page with the servers.

- **happens**: both were committed, and the anomaly occurred.
- *not visible*: both were committed; the reader saw the former state.
- *waits*: one of them waited until the other had ended.
- *error*: one of them was rolled back and must run again, as ` + "`guard/isolation`" + ` does.

`)
	for _, db := range []struct{ id, title, note string }{
		{string(driver.Postgres), "PostgreSQL 15", "READ UNCOMMITTED is READ COMMITTED there, which is the default."},
		{string(driver.MariaDB), "MariaDB 10.11", `REPEATABLE READ is the default there. It reads from a snapshot, and overwrites rows that the snapshot does not show. A
lost update is not detected, unless the read locks (` + "`for update`" + `) or innodb_snapshot_isolation is on. At SERIALIZABLE
every read takes a shared lock; two transactions that then both write are a deadlock.`},
	} {
		fmt.Fprintf(&b, "## %s\n\n|", db.title)
		for _, level := range levels {
			fmt.Fprintf(&b, " | %s", level)
		}
		b.WriteString(" |\n|---" + strings.Repeat("|---", len(levels)) + "|\n")
		for _, a := range anomalies {
			fmt.Fprintf(&b, "| %s", a.name)
			for _, level := range levels {
				fmt.Fprintf(&b, " | %s", cells[db.id+a.name+level.String()])
			}
			b.WriteString(" |\n")
		}
		fmt.Fprintf(&b, "\n%s\n\n", db.note)
	}
	b.WriteString("## The anomalies\n\n")
	for _, a := range anomalies {
		fmt.Fprintf(&b, "- **%s**: %s.\n", a.name, a.meaning)
	}
	return b.String()
}

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

// A way to go off call only if another doctor stays: the level, and the statement that
// a transaction reads before it decides. before, if any, runs first.
type way struct {
	level        driver.Isolation
	before, look string
	broken       bool
}

const lookOnly = `select name from doctor where on_call = 1 order by name`

var ways = map[string]way{
	"serializable":                              {level: driver.Serializable, look: lookOnly},
	"a row that stands for the set":             {level: driver.ReadCommitted, before: `update shift set changes = changes + 1 where id = 1`, look: lookOnly},
	"a lock on the set":                         {level: driver.ReadCommitted, look: lookOnly + ` for update`},
	"a look at read committed, which is broken": {level: driver.ReadCommitted, look: lookOnly, broken: true},
	"a snapshot, which is broken":               {level: driver.RepeatableRead, look: lookOnly, broken: true},
}

var errLastDoctor = errors.New("somebody has to stay on call")

// TestWriteSkew: two doctors on call go off call at the same moment. The rounds are seeded, and
// equal for each way.
func TestWriteSkew(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, way := range ways {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := open(t)
				db.Exec(t, `create table doctor (name varchar(9) primary key, on_call int not null)`,
					`create table shift (id int primary key, changes bigint not null)`,
					`insert into doctor (name, on_call) values ('alice', 1), ('bob', 1)`, `insert into shift (id, changes) values (1, 0)`)
				way.rounds(t, db)
			})
		}
	}, databases.Pgx, databases.Maria)
}

// rounds of a broken way meet between read and write, so that the anomaly happens
// whenever the database allows it.
func (w way) rounds(t *testing.T, db *databases.DB) {
	const rounds = 250
	empty, refused := 0, 0
	for round := range rounds {
		db.Exec(t, `update doctor set on_call = 1`)
		r := rand.New(rand.NewPCG(11, uint64(round)))
		var both sync.WaitGroup
		meeting := newMeeting(w.broken)
		errs := make([]error, 2)
		for i, name := range []string{"alice", "bob"} {
			pause := time.Duration(r.IntN(400)) * time.Microsecond
			both.Go(func() { errs[i] = w.goHome(t.Context(), db, name, pause, meeting) })
		}
		both.Wait()
		for _, err := range errs {
			switch {
			case errors.Is(err, errLastDoctor):
				refused++
			case err != nil:
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if databases.One[int64](t, db, `select count(*) from doctor where on_call = 1`) == 0 {
			empty++
		}
	}
	switch {
	case w.broken && empty < rounds*95/100:
		t.Errorf("%d of %d rounds ended with nobody on call: it is not shown", empty, rounds)
	case !w.broken && (empty > 0 || refused != rounds):
		t.Errorf("of %d rounds %d ended with nobody on call, and %d with one who stayed", rounds, empty, refused)
	}
}

// goHome reads who is on call, and goes off if another doctor is.
func (w way) goHome(ctx context.Context, db *databases.DB, name string, pause time.Duration, m *meeting) error {
	return isolation.Do(ctx, db, w.level, &isolation.Options{Attempts: 20}, func(ctx context.Context, tx driver.SQL) error {
		if w.before != "" {
			if _, err := tx.Exec(ctx, w.before); err != nil {
				return err
			}
		}
		others := 0
		err := tx.Query(ctx, w.look, nil, func(scan func(...any) error) error {
			var on string
			err := scan(&on)
			if on != name {
				others++
			}
			return err
		})
		if err != nil {
			return err
		}
		if others == 0 {
			return errLastDoctor
		}
		m.wait()
		time.Sleep(pause) // it takes time to decide
		_, err = tx.Exec(ctx, `update doctor set on_call = 0 where name = '`+name+`'`)
		return err
	})
}

// meeting makes both wait for each other, if wanted.
type meeting struct {
	arrived atomic.Int64
	all     chan struct{}
}

func newMeeting(wanted bool) *meeting {
	if !wanted {
		return nil
	}
	return &meeting{all: make(chan struct{})}
}

func (m *meeting) wait() {
	if m == nil {
		return
	}
	if m.arrived.Add(1) == 2 {
		close(m.all)
	}
	select {
	case <-m.all:
	case <-time.After(bound):
	}
}
