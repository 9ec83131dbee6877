package outbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestReadSize: a read keeps the payloads of one batch, whatever its limit: after small messages that is hundreds. The other
// messages remain for the next batch.
func TestReadSize(t *testing.T) {
	db, table := databases.Open(t, testbed.Postgres(t), databases.Pgx), Table{Slices: 1}
	var large []Message
	for i := range 12 {
		large = append(large, Message{Topic: "t", Key: fmt.Sprint(i % 2), Payload: make([]byte, MaxPayload)})
	}
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		if err := table.Create(ctx, sql); err != nil {
			return err
		}
		return table.Add(ctx, sql, large...)
	})
	s, err := table.open("read", db.Begun(t, driver.ReadCommitted))
	testbed.OK(t, err)
	p, _, err := s.ready(t.Context(), 0, 100, nil)
	testbed.OK(t, err)
	size := 0
	for _, r := range p.rows {
		size += len(r.Payload)
	}
	if b := plan(p, nil, maxBatchBytes); len(p.rows) != len(large) || size != maxBatchBytes || len(b.send) != 8 || !b.full {
		t.Errorf("%d rows with %d bytes of payload, of which %d are sent, full: %v", len(p.rows), size, len(b.send), b.full)
	}
}

// TestReadCost: a read visits the messages that it returns, and those under way, but not the rest of a
// backlog, also without statistics.
func TestReadCost(t *testing.T) {
	db, table := databases.Open(t, testbed.Postgres(t), databases.Pgx), Table{Slices: 1}
	var backlog []Message
	for i := range 3000 {
		backlog = append(backlog, Message{Topic: "t", Key: fmt.Sprint(i % 10), Payload: []byte("x")})
	}
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		if err := table.Create(ctx, sql); err != nil {
			return err
		}
		return table.Add(ctx, sql, backlog...)
	})
	tx := db.Begun(t, driver.ReadCommitted)
	s, err := table.open("read", tx)
	testbed.OK(t, err)
	visited := func() int64 {
		n, err := databases.Value[int64](t.Context(), tx, `select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'interlock_outbox'`)
		testbed.OK(t, err)
		return n
	}
	const limit = 100
	var underway []row
	for range 2 {
		before, most := visited(), limit+len(underway)
		p, _, err := s.ready(t.Context(), 0, limit, underway)
		testbed.OK(t, err)
		if n := visited() - before; len(p.rows) != limit || n > int64(most) {
			t.Errorf("a read of %d messages beside %d visited %d, want %d", len(p.rows), len(underway), n, most)
		}
		underway = p.rows
	}
}

// TestWaitingCost: a read visits no key that waits, however many there are.
func TestWaitingCost(t *testing.T) {
	db, table := databases.Open(t, testbed.Postgres(t), databases.Pgx), Table{Slices: 1}
	db.Do(t, table.Create)
	db.Exec(t, `insert into interlock_outbox_lane (lane, slice, topic, msg_key, message_id, head, why, attempts, last_error, since, wait_until)
		select i, 0, 't', i::text, i::text, i, case i % 2 when 0 then 'retry' else 'delayed' end, 1, '', 0, extract(epoch from now()) * 1000000 + 60000000
		from generate_series(1, 3000) i`)
	tx := db.Begun(t, driver.ReadCommitted)
	s, err := table.open("read", tx)
	testbed.OK(t, err)
	_, err = s.read(t.Context(), 0, 100, nil)
	testbed.OK(t, err)
	n, err := databases.Value[int64](t.Context(), tx, `select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'interlock_outbox_lane'`)
	testbed.OK(t, err)
	if n > 0 {
		t.Errorf("a read visited %d keys that wait", n)
	}
}
