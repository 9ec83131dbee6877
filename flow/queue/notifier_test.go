package queue_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// counter counts notifications.
type counter struct {
	driver.Notifier
	n atomic.Int64
}

func (r *counter) Notify(...string) { r.n.Add(1) }

// TestTxNotifies: a transaction notifies after its commit, and only then.
func TestTxNotifies(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, table.Create)
		var notifier counter
		add := func(ctx context.Context, tx driver.SQL) error {
			if n := notifier.n.Load(); n != 0 {
				t.Errorf("%d notifications before the commit", n)
			}
			return table.Add(ctx, tx, "q", queue.Message{ID: "1"})
		}
		refused := errors.New("the user's")
		if err := queue.Tx(t.Context(), db, &notifier, func(ctx context.Context, tx driver.SQL) error {
			return errors.Join(add(ctx, tx), refused)
		}); !errors.Is(err, refused) || notifier.n.Load() != 0 {
			t.Errorf("after a rollback: %v, %d notifications", err, notifier.n.Load())
		}
		ok(t, queue.Tx(t.Context(), db, &notifier, add))
		if n := notifier.n.Load(); n != 1 {
			t.Errorf("%d notifications after the commit", n)
		}
		ok(t, queue.Tx(t.Context(), db, nil, func(context.Context, driver.SQL) error { return nil }))
	}, databases.Pgx, databases.Maria)
}

// TestOpenListens: a consumer by URL listens on the channel of Channel.
func TestOpenListens(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		c, err := queue.Open(t.Context(), db.URL, "q", table, func(context.Context, queue.Received) error { return nil }, nil)
		ok(t, err)
		testbed.Eventually(t, "it listens", bound, func() bool {
			return databases.One[int64](t, db, `select count(*) from pg_stat_activity where datname = current_database() and query = 'listen "`+queue.Channel+`"'`) == 1
		})
		ok(t, c.Close(t.Context()))
	}, databases.Pgx)
}

// TestAddWakes: a consumer that has been idle for long begins a message at once when it is added.
func TestAddWakes(t *testing.T) {
	after := time.Duration(-1)
	var added time.Time
	bubble(t, queue.Options{}, func(context.Context, queue.Received) error {
		after = time.Since(added)
		return nil
	}, func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
		time.Sleep(time.Minute + 300*time.Millisecond)
		added = time.Now()
		fill(t, q, 1, "a")
		synctest.Wait()
		if after != 0 {
			t.Errorf("begun after %v", after)
		}
	})
}
