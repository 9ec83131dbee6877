package kafka

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
	"github.com/interlock-dev/interlock/internal/testbed"
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

// TestPoolsOfTheCaller: the client does not get back the payloads of messages, although its caller has a
// pool for them.
func TestPoolsOfTheCaller(t *testing.T) {
	s := newScene(t, 1)
	text := strings.Repeat("text ", 100) // compressed
	r := &kgo.Record{Topic: s.topic, Value: []byte(text)}
	testbed.OK(t, client(t, seeds(s.addr)).ProduceSync(t.Context(), r).FirstErr())
	p := &pool{}
	q := s.join(&QueueOptions{Client: []kgo.Opt{kgo.WithPools(p)}})
	for _, m := range q.Take(1) {
		if string(m.Payload) != text {
			t.Errorf("message %d has %.50q", m.Place, m.Payload)
		}
	}
	if p.asked.Load() == 0 {
		t.Error("the client has not used the pool")
	}
}

type pool struct{ asked atomic.Int64 }

func (p *pool) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte {
	p.asked.Add(1)
	return nil
}

func (p *pool) PutDecompressBytes([]byte) {}
