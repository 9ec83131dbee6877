package queue_test

import (
	"runtime"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestLargeMessages: one call adds many large messages, and a claim reads hardly more
// than it may return. What it leaves keeps its rank.
func TestLargeMessages(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, table.Create)
		const n = 24
		var all []queue.Message
		for range n {
			all = append(all, queue.Message{Payload: make([]byte, queue.MaxPayload)})
		}
		addIn(t, db, all...)
		const newest = `select coalesce(max(ready_at), 0) from interlock_queue_group where state = 0`
		added := databases.One[int64](t, db, newest)
		c := drivertest.JoinQueue(t, queue.FromTable(db, table, nil), "q", driver.QueueOptions{Owner: "o"})
		for got := 0; got < n; {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 512, Bytes: 2*queue.MaxPayload + 1})
			runtime.ReadMemStats(&after)
			ok(t, err)
			if took := after.TotalAlloc - before.TotalAlloc; len(some) != 2 || took > 16<<20 {
				t.Fatalf("%d messages, and %d bytes were allocated", len(some), took)
			}
			if last := databases.One[int64](t, db, newest); last > added {
				t.Fatalf("a message that did not fit has lost its rank: it is ready since %d, added until %d", last, added)
			}
			got += len(some)
			c.Record(driver.Ack, some...)
		}
	})
}
