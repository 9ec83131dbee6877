package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

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
		p, _, err := s.pausing(time.Minute).ready(t.Context(), 0, limit, underway)
		testbed.OK(t, err)
		if n := visited() - before; len(p.rows) != limit || n > int64(most) {
			t.Errorf("a read of %d messages beside %d visited %d, want %d", len(p.rows), len(underway), n, most)
		}
		underway = p.rows
	}
}
