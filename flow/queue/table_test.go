package queue_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

var (
	table queue.Table
	by    = queue.By{Actor: "alice", Reason: "a test"}
)

// TestTable runs the suite of queues on every database.
func TestTable(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		drivertest.RunQueue(t, drivertest.QueueHarness{Start: func(t *testing.T) drivertest.QueueBackend {
			db := open(t)
			db.Do(t, table.Create)
			return inDB{queue.FromTable(db, table, nil), db}
		}})
	})
}

// inDB is the queues of a database.
type inDB struct {
	driver.Queue
	db *databases.DB
}

func (q inDB) Add(t *testing.T, name string, messages ...driver.QueueMessage) (err error) {
	tx := q.db.Begun(t, driver.SessionIsolation)
	if err := table.Add(t.Context(), tx, name, messages...); err != nil {
		return err
	}
	return tx.Commit(t.Context())
}

func (q inDB) letters(t *testing.T, name string) (all []queue.DeadLetter) {
	q.db.Do(t, func(ctx context.Context, sql driver.SQL) (err error) {
		all, err = table.DeadLetters(ctx, sql, name, queue.DeadLetterQuery{})
		return err
	})
	return all
}

func (q inDB) DeadLetters(t *testing.T, name string) (ids []string) {
	for _, l := range q.letters(t, name) {
		ids = append(ids, l.ID)
	}
	return ids
}

func (q inDB) Replay(t *testing.T, name string, ids ...string) {
	var places []int64
	for _, l := range q.letters(t, name) {
		if slices.Contains(ids, l.ID) {
			places = append(places, l.Place)
		}
	}
	q.db.Do(t, func(ctx context.Context, sql driver.SQL) error { return table.Replay(ctx, sql, name, by, places...) })
}

func (q inDB) Resume(t *testing.T, name, key string) {
	q.db.Do(t, func(ctx context.Context, sql driver.SQL) error { return table.Resume(ctx, sql, name, by, key) })
}

// Age has keys become ready so much earlier.
func (q inDB) Age(t *testing.T, name string, d time.Duration) {
	q.db.Exec(t, fmt.Sprintf(`update interlock_queue_group set ready_at = ready_at - %d where queue = '%s'`, d.Microseconds(), name))
}

// TestDroppedMessage: a message that is dropped does not change the priority of its key.
func TestDroppedMessage(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, table.Create)
		q := inDB{queue.FromTable(db, table, nil), db}
		for _, m := range []queue.Message{{ID: "1", Key: "a", Unique: "u", Priority: queue.High}, {ID: "2", Key: "b"},
			{ID: "3", Key: "a", Unique: "u", Priority: queue.Low}, {ID: "4", Unique: "u"}} {
			if err := q.Add(t, "q", m); err != nil {
				t.Fatal(err)
			}
		}
		c := drivertest.JoinQueue(t, q, "q", driver.QueueOptions{Owner: "o"})
		if got := drivertest.ReceivedIDs(c.Take(2)); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("received %v", got)
		}
	})
}
