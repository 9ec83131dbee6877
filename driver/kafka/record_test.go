package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// TestArrivalAllocations: a record costs no allocation of its own until it is delivered. Messages are
// allocated together, and so are their ids.
func TestArrivalAllocations(t *testing.T) {
	const n = 500
	s := &session{consumer: &consumer{Consumer: lanes.NewConsumer(lanes.Hooks[*assignment]{Queue: "q"})}}
	a := &assignment{session: s, Assignment: lanes.Assignment{Offsets: lanes.Restore(0, lanes.Committed{}, 1, 1)}}
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Key: []byte("key")}
	}
	next := int64(0)
	allocations := testing.AllocsPerRun(10, func() {
		for _, r := range records {
			r.Offset = next
			next++
		}
		a.add(records)
	})
	all, _ := a.Offsets.Take(nil, &driver.QueueLimit{Messages: n, Bytes: 1}, time.Now())
	if len(all) != n || all[n-1].ID != "/499" || all[n-1].Queue != "q" || allocations > n/16 {
		t.Errorf("%d records took %.0f allocations; the last message is %+v", n, allocations, all[len(all)-1])
	}
}
