package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// counting is a server that counts statements.
func counting(t testing.TB) (*testbed.Server, *pgxpool.Pool) {
	t.Helper()
	server := testbed.Postgres(t, "-c", "shared_preload_libraries=pg_stat_statements")
	o := operator(t, server.URL())
	exec(t, o, `create extension pg_stat_statements`)
	return server, o
}

// executed is how many statements the server has executed, but for this one.
func executed(t testing.TB, o *pgxpool.Pool) (n int64) {
	t.Helper()
	n, _ = spent(t, o)
	return n
}

// spent is as executed, with how many buffers the statements have read.
func spent(t testing.TB, o *pgxpool.Pool) (statements, buffers int64) {
	t.Helper()
	err := o.QueryRow(t.Context(), `select coalesce(sum(calls), 0)::bigint, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint
		from pg_stat_statements where query not like '%pg_stat_statements%'`).Scan(&statements, &buffers)
	testbed.OK(t, err)
	return statements, buffers
}

// Uncontended, a session lock is two requests: one statement takes it, draws the
// token and records it; two in one request give it up and wake who waits. A row
// is two statements.
func TestCostOfAnUncontendedLock(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	session := openOn(t, server.Addr(), time.Minute)
	const cycles = 200
	spend := func(d driver.Fenced) int64 {
		give(t, d, "warm", take(t, d, "warm"))
		before := executed(t, o)
		for range cycles {
			give(t, d, "x", take(t, d, "x"))
		}
		return executed(t, o) - before
	}
	give(t, session, "first", take(t, session, "first")) // which reserves tokens
	asked := session.sentCalls()
	_, read := spent(t, o)
	if spent := spend(session); spent != 3*cycles {
		t.Errorf("session: %d statements for %d cycles, want 3 each", spent, cycles)
	}
	if spent := session.sentCalls() - asked; spent != 2*(cycles+1) {
		t.Errorf("session: %d requests for %d cycles, want 2 each", spent, cycles+1)
	}
	if _, now := spent(t, o); now-read > 14*cycles+100 { // those of warming up are among them
		t.Errorf("session: %d buffers read for %d cycles, want 14 each", now-read, cycles)
	}
	// A table that opens sweeps once and listens, which may fall into the time
	// counted.
	if spent := spend(longTable(t, server)); spent < 2*cycles || spent > 2*cycles+2 {
		t.Errorf("table: %d statements for %d cycles, want 2 each", spent, cycles)
	}
}

// A hand-over is six statements: two to release; one to find that the lock is not free, two to
// take a place and look again, and one when its turn comes.
func TestCostOfAHandOver(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	x, y := openOn(t, server.Addr(), time.Minute), openOn(t, server.Addr(), time.Minute)
	owner := take(t, x, "hot")
	const handOvers = 20
	before, began := executed(t, o), time.Now()
	for range handOvers {
		next := await(t, y, "hot")
		give(t, x, "hot", owner)
		g := testbed.Receive(t, next, "the next holder")
		testbed.OK(t, g.err)
		owner, x, y = g.owner, y, x
	}
	// Heartbeats and pings may fall into the time counted.
	more := 4 + int64(time.Since(began)/(heartbeat/2))
	if spent := executed(t, o) - before; spent < 6*handOvers || spent > 6*handOvers+more {
		t.Errorf("%d statements for %d hand-overs, want 6 each", spent, handOvers)
	}
}

// TestAllocations of a pair of acquire and release, in the driver and its client.
func TestAllocations(t *testing.T) {
	server := EmptyServer(t)
	d := openOn(t, server.Addr(), time.Minute)
	r := driver.Request{Name: "x", Owner: "o"}
	n := testing.AllocsPerRun(100, func() {
		_, err := d.Acquire(t.Context(), r)
		testbed.OK(t, err)
		testbed.OK(t, d.Release(t.Context(), r.Name, r.Owner))
	})
	if n > 12 { // 11, and some more with the race detector, which empties pools
		t.Errorf("%v allocations, want at most 12", n)
	}
}

func longTable(t testing.TB, server *testbed.Server) *Table {
	t.Helper()
	d, err := OpenTable(t.Context(), operator(t, server.URL()), &TableOptions{TTL: time.Minute})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

// A thousand locks are held on one connection, by as many goroutines as one,
// and kept alive with one statement.
func TestCostOfManyLocks(t *testing.T) {
	server := EmptyServer(t)
	o := operator(t, server.URL())
	const many = 1000
	d := openOn(t, server.Addr(), suiteTTL)
	take(t, d, "first")
	const connected = `select count(*) from pg_stat_activity where backend_type = 'client backend'`
	goroutines, connections := runtime.NumGoroutine(), value[int](t, o, connected)
	renewed := make(chan struct{}, 10*many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			r := driver.Request{Name: fmt.Sprint("n/", i), Owner: newOwner()}
			r.Events.Renewed = func(_ time.Duration, err error) {
				if err == nil && i == many-1 {
					renewed <- struct{}{}
				}
			}
			if _, err := d.Acquire(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	testbed.Eventually(t, "as many goroutines as before", bound, func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := value[int](t, o, connected); n > connections { // one of the operator's may have ended
		t.Errorf("%d connections, before it was %d", n, connections)
	}
	testbed.Receive(t, renewed, "a renewal")
	sent := d.sentCalls()
	for range 3 {
		testbed.Receive(t, renewed, "a renewal")
	}
	if spent := d.sentCalls() - sent; spent > 5 {
		t.Errorf("%d requests for 3 renewals of %d locks", spent, many)
	}
}

func (d *Driver) sentCalls() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.pipe.mu.Lock()
	defer d.session.pipe.mu.Unlock()
	return d.session.pipe.sent
}

// A herd of processes: each hand-over wakes one of them.
func TestCostOfAHerd(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	holder := openOn(t, server.Addr(), time.Minute)
	owner := take(t, holder, "hot")
	const herd = 12
	drivers, released := make([]*Driver, herd), make(chan error, herd)
	for i := range drivers {
		d := openOn(t, server.Addr(), time.Minute)
		drivers[i] = d
		done := await(t, d, "hot")
		go func() {
			g := <-done
			released <- errors.Join(g.err, d.Release(context.WithoutCancel(t.Context()), "hot", g.owner))
		}()
	}
	calls := func() (n int64) {
		for _, d := range drivers {
			n += d.sentCalls()
		}
		return n
	}
	before, began := calls(), time.Now()
	give(t, holder, "hot", owner)
	for range herd {
		testbed.OK(t, testbed.Receive(t, released, "the next holder"))
	}
	took := time.Since(began)
	spent := calls() - before
	t.Logf("%d requests for %d hand-overs in %v", spent, herd, took.Round(time.Millisecond))
	// A try, a reservation of tokens and a release for each, and heartbeats of the waiters.
	if most := int64(3*herd + herd + int(took/(heartbeat/2))*herd); spent > most {
		t.Errorf("%d requests, want at most %d", spent, most)
	}
}

// What many ask for while the server is busy shares a transaction each way, with one commit.
func TestCostOfManyAtOnce(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	d := openOn(t, server.Addr(), time.Minute)
	const many = 200
	give(t, d, "first", take(t, d, "first")) // which reserves tokens
	grants := make(chan error, mostFlights+many)
	acquire := func(i int) {
		go func() {
			_, err := d.Acquire(t.Context(), driver.Request{Name: fmt.Sprint("n/", i), Owner: "o"})
			grants <- err
		}()
	}
	release := func(i int) {
		go func() { grants <- d.Release(t.Context(), fmt.Sprint("n/", i), "o") }()
	}
	for _, ask := range []func(int){acquire, release} {
		statements, requests := executed(t, o), d.sentCalls()
		goOn := stall(t, o)
		for i := range mostFlights {
			ask(i)
			testbed.Eventually(t, "the server is busy", bound, func() bool { return d.sentCalls() > requests+int64(i) })
		}
		for i := range many {
			ask(mostFlights + i)
		}
		testbed.Eventually(t, "the others wait", bound, func() bool { return d.queued() == many })
		goOn()
		for range mostFlights + many {
			testbed.OK(t, testbed.Receive(t, grants, "an answer"))
		}
		statements, requests = executed(t, o)-statements, d.sentCalls()-requests
		// 3 requests of 2 statements at most, what stalls them, and a ping.
		if requests > mostFlights+2 || statements > 10 {
			t.Errorf("%d statements in %d requests for %d callers, want 3 requests of 2", statements, requests, mostFlights+many)
		}
	}
}

// stall keeps the server from executing what changes holders until goOn is called.
func stall(t *testing.T, o *pgxpool.Pool) (goOn func()) {
	t.Helper()
	tx, err := o.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `lock table interlock_holder in exclusive mode`)
	}
	testbed.OK(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // so that a test that fails ends
	return func() {
		testbed.OK(t, tx.Commit(t.Context()))
	}
}

// queued is how many calls wait to be sent.
func (d *Driver) queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.pipe.mu.Lock()
	defer d.session.pipe.mu.Unlock()
	return len(d.session.pipe.queued)
}

// TestAutocommit: each statement is a transaction of its level. What the server refuses was
// not done, and leaves the pool usable; what was not sent is Definite.
func TestAutocommit(t *testing.T) {
	pool := operator(t, EmptyServer(t).URL())
	exec(t, pool, `create table single (id bigint primary key)`)
	db := Pool(pool).(driver.Autocommitter).Autocommit(driver.Serializable)
	level := ""
	read := func(scan func(...any) error) error { return scan(&level) }
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx   context.Context
		query string
		fails bool
		kind  interlock.ErrorKind
	}{
		{t.Context(), `insert into single values (1) returning current_setting('transaction_isolation')`, false, 0},
		{t.Context(), `insert into single values (2), (1) returning ''`, true, interlock.Definite},
		{gone, `insert into single values (3) returning ''`, true, interlock.Definite},
		{t.Context(), `select pg_terminate_backend(pg_backend_pid())::text`, true, interlock.Retryable},
		{t.Context(), `do $$ begin raise sqlstate '55P03'; end $$`, true, interlock.Retryable},
		{t.Context(), `do $$ begin raise sqlstate '57014'; end $$`, true, interlock.Definite},
		{t.Context(), `select 'again'`, false, 0},
	} {
		err := db.Query(c.ctx, c.query, nil, read)
		if (err != nil) != c.fails || err != nil && interlock.Kind(err) != c.kind {
			t.Errorf("%s: %v", c.query, err)
		}
		if !c.fails && level != "serializable" && level != "again" {
			t.Errorf("%s: %q", c.query, level)
		}
	}
	if n, err := db.Exec(t.Context(), `delete from single`); n != 1 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
}

// TestCostOfABranch: database/sql adds an empty transaction to a prepared branch.
func TestCostOfABranch(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	db, err := sql.Open("pgx", server.URL())
	testbed.OK(t, err)
	t.Cleanup(func() { db.Close() })
	pool, err := OpenParticipant(t.Context(), o, "shop", nil)
	testbed.OK(t, err)
	std, err := OpenStdParticipant(t.Context(), db, "std", nil)
	testbed.OK(t, err)
	const insert = `insert into account values (gen_random_uuid()::text, 1)`
	count := func() int64 { return executed(t, o) }
	preparedtest.Costs(t, preparedtest.Database[pgx.Tx]{Insert: insert, Exec: func(ctx context.Context, tx pgx.Tx, query string) error {
		_, err := tx.Exec(ctx, query)
		return err
	}}.BankOf(t, pool, db), count, 0)
	preparedtest.Costs(t, preparedtest.Database[*sql.Tx]{Insert: insert, Exec: func(ctx context.Context, tx *sql.Tx, query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	}}.BankOf(t, std, db), count, 2)
}
