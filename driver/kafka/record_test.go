package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// TestOffsetsAllocations: a record costs no allocation of its own, also if its key had none for a
// while: entries and ids are allocated together.
func TestOffsetsAllocations(t *testing.T) {
	const n = 500
	var keys [100][]byte
	for i := range keys {
		keys[i] = []byte{byte(i)}
	}
	a := &assignment{Assignment: lanes.Assignment{Offsets: lanes.Restore(0, lanes.Committed{}, 1, 100)}}
	o, offset := a.Offsets, int64(0)
	all := make([]*driver.Received, 0, n)
	allocations := testing.AllocsPerRun(10, func() {
		records := make([]kgo.Record, n)
		for i := range records {
			records[i] = kgo.Record{Topic: "t", Offset: offset, Key: keys[i%len(keys)]}
			r := &records[i]
			o.Arrive(r.Offset, r.Key, len(r.Value), r)
			offset++
		}
		limit := driver.QueueLimit{Messages: n, Bytes: 1}
		all = all[:0]
		o.Take(&limit, true, time.Time{}, func(r any, m *driver.Received) {
			fill(a, r, m)
			all = append(all, m)
		})
		for _, m := range all {
			o.Complete(m.Place)
		}
		o.Sweep()
	})
	if len(all) != n || all[n-1].Place != offset-1 || allocations > n/16 {
		t.Errorf("%d records took %.0f allocations", len(all), allocations)
	}
}
