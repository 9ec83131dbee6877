package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// bound is how long a test waits for what must happen.
const bound = 20 * time.Second

// A pooler in transaction mode is detected, with any number of server processes, taken in any
// order, and while others use it.
func TestTransactionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	for name, extra := range map[string][]string{
		"last used first": nil, "in turn": {"server_round_robin = 1"}, "two processes": {"default_pool_size = 2"},
		"one process": {"default_pool_size = 1"}, "many processes": {"min_pool_size = 15"},
	} {
		t.Run(name, func(t *testing.T) {
			pooler := testbed.PgBouncer(t, server, "transaction", extra...)
			if name != "one process" {
				warm(t, operator(t, pooler.URL()))
			}
			d, err := Open(t.Context(), configOf(t, pooler.URL()), nil)
			if err == nil {
				d.Close(t.Context())
				t.Fatal("it was accepted")
			}
			var found *PoolerError
			if !errors.As(err, &found) || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "OpenTable") {
				t.Fatalf("%v (%v)", err, interlock.Kind(err))
			}
		})
	}
}

// A process that the pooler started meanwhile, and uses first, is noticed: it takes each turn of ours
// before the probe holds one open, and leaves us ours afterwards.
func TestPoolerThatStartsAProcess(t *testing.T) {
	t.Parallel()
	pooler := testbed.PgBouncer(t, EmptyServer(t), "transaction", "default_pool_size = 2")
	connect := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), configOf(t, pooler.URL()))
		testbed.OK(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	conn, other := connect(), connect()
	first, err := conn.Begin(t.Context())
	testbed.OK(t, err)
	ours, err := processOf(t.Context(), conn)
	testbed.OK(t, err)
	second, err := other.Begin(t.Context())
	testbed.OK(t, err)
	testbed.OK(t, first.Rollback(t.Context()))
	testbed.OK(t, second.Rollback(t.Context())) // its process is the last one used, and is used next
	if err := occupied(t.Context(), conn, other, ours); !errors.As(err, new(*PoolerError)) {
		t.Errorf("got %v", err)
	}
}

// warm makes the pooler open two server processes, which then idle.
func warm(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for range 2 {
		tx, err := pool.Begin(t.Context())
		testbed.OK(t, err)
		defer tx.Rollback(context.Background())
	}
}

// A pooler in session mode is as good as none.
func TestSessionPoolerIsAccepted(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	pooler := testbed.PgBouncer(t, server, "session")
	a, b := openOn(t, pooler.Addr(), suiteTTL), openOn(t, pooler.Addr(), suiteTTL)
	owner := take(t, a, "x")
	refuse(t, b, "x")
	give(t, a, "x", owner)
	give(t, b, "x", take(t, b, "x"))
}

// Should a pooler escape the probe, its answers come from another process than
// the session's, and nothing of that is believed.
func TestGrantOfAnotherProcessIsNotBelieved(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	d := openOn(t, server.Addr(), suiteTTL)
	d.mu.Lock()
	d.session.pid = "1"
	d.mu.Unlock()
	_, err := d.Acquire(t.Context(), driver.Request{Name: "x", Owner: "o"})
	var pooler *PoolerError
	if !errors.As(err, &pooler) {
		t.Fatalf("got %v", err)
	}
}

// Tables work behind every pooler, by asking where they cannot listen. Only
// their making needs a transaction, which a pooler of statements does not allow.
func TestTableBehindPoolers(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	for _, mode := range []string{"transaction", "statement", "session"} {
		t.Run(mode, func(t *testing.T) {
			namespace := "behind_" + mode
			if mode == "statement" {
				openTableAt(t, server.URL(), namespace)
			}
			pooler := testbed.PgBouncer(t, server, mode)
			a, b := openTableAt(t, pooler.URL(), namespace), openTableAt(t, pooler.URL(), namespace)
			if a.Guarantees().Wait != interlock.Poll {
				t.Errorf("it claims to wait by %v", a.Guarantees().Wait)
			}
			owner := take(t, a, "x")
			waiting := await(t, b, "x")
			give(t, a, "x", owner)
			next := testbed.Receive(t, waiting, "the next holder")
			testbed.OK(t, next.err)
			refuse(t, a, "x")
			give(t, b, "x", next.owner)
		})
	}
}

func openTableAt(t testing.TB, url, namespace string) *Table {
	t.Helper()
	d, err := OpenTable(t.Context(), operator(t, url), &TableOptions{TTL: suiteTTL, Namespace: namespace})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}
