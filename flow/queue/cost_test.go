package queue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestCosts counts the statements and commits of a thousand messages that are added, leased and
// settled at once, and those of an idle consumer.
func TestCosts(t *testing.T) {
	most := map[driver.Dialect]struct{ add, work, commits int64 }{driver.Postgres: {2, 7, 4}, driver.MariaDB: {5, 23, 4}}
	eachDB(t, func(t *testing.T, db *databases.DB) {
		counted, want := &databases.Counted{BeginnerAt: db}, most[db.Dialect]
		var all []queue.Message
		for i := range 1000 {
			all = append(all, queue.Message{Key: fmt.Sprint(i % 100), Payload: []byte("x")})
		}
		db.Do(t, func(ctx context.Context, sql driver.SQL) error { return table.Add(ctx, counted.SQL(sql), "q", all...) })
		if n := counted.Statements.Load(); n > want.add {
			t.Errorf("adding took %d statements, want %d", n, want.add)
		}
		if n := databases.One[int64](t, db, `select count(*) from interlock_queue_arrival`); db.Dialect == driver.Postgres && n > 10 {
			t.Errorf("adding left %d arrivals, want 10", n)
		}
		counted.Reset()
		c, err := queue.FromTable(counted, table, nil).Join(t.Context(), "q", driver.QueueOptions{})
		ok(t, err)
		some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1000, Bytes: 1 << 20})
		ok(t, err)
		var settlements []driver.Settlement
		for _, m := range some {
			settlements = append(settlements, driver.Settlement{Received: m, Outcome: driver.Ack})
		}
		ok(t, errors.Join(c.Settle(t.Context(), settlements)...))
		if n, commits := counted.Statements.Load(), counted.Commits.Load(); len(some) != 1000 || n > want.work || commits > want.commits {
			t.Errorf("%d messages took %d statements and %d commits, want %d and %d", len(some), n, commits, want.work, want.commits)
		}
		counted.Reset()
		idle, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if some, err := c.Receive(idle, driver.QueueLimit{Messages: 1, Bytes: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("received %v, %v", some, err)
		}
		// The first claim looks for groups, too. The pauses double from a millisecond to a second.
		if n := counted.Statements.Load(); n > 22 {
			t.Errorf("an idle consumer needed %d statements in its first two seconds", n)
		}
		ok(t, c.Close(t.Context()))
	}, databases.Pgx, databases.Maria)
}

// TestArrivalsOfReadyKeys: claims admit many arrivals together if most of their keys are ready anyway.
func TestArrivalsOfReadyKeys(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		var all []queue.Message
		for i := range 9000 {
			all = append(all, queue.Message{Key: fmt.Sprint(i % 1000), Payload: []byte("x")})
		}
		addIn(t, db, all...)
		c, err := queue.FromTable(db, table, nil).Join(t.Context(), "q", driver.QueueOptions{})
		ok(t, err)
		for _, want := range []int64{8000, 7000, 0} {
			_, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
			ok(t, err)
			if n := databases.One[int64](t, db, `select coalesce(sum(cardinality(lanes)), 0)::bigint from interlock_queue_arrival`); n != want {
				t.Errorf("a claim left %d arrivals, want %d", n, want)
			}
		}
		ok(t, c.Close(t.Context()))
	}, databases.Pgx)
}
