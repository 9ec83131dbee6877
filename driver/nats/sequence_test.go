package nats

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSequence feeds sequencers from a stream whose messages are out of order and repeated. One of two
// consumers is disconnected meanwhile. Each event is delivered once, in order, and every message is
// settled.
func TestSequence(t *testing.T) {
	s := newScene(t)
	const keys, each = 10, 60
	var store sequence.Memory // like a table that both processes share
	audit := drivertest.NewQueueAudit()
	start := func(q *Queue) func(context.Context) { return queuetest.Sequence(t, q, "q", lease, &store, audit) }
	all := drivertest.ReorderedIDs(keys, each)
	s.add(all[:len(all)/2]...)
	path := testbed.NewProxy(t, s.addr)
	one := start(s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(path.Addr()))}}))
	defer one(context.Background())
	audit.Wait(t, 50)
	q := s.queue(nil)
	two := start(q)
	defer two(context.Background())
	testbed.Eventually(t, "the partitions are shared", time.Minute, s.has(q, partitions/2))
	path.Cut()
	s.add(all[len(all)/2:]...)
	audit.Wait(t, keys*each)
	testbed.Eventually(t, "nothing is left", time.Minute, func() bool {
		backlogs, err := q.Backlogs(t.Context(), "q")
		return queuetest.Drained(backlogs, err, partitions)
	})
	path.Heal()
	audit.Check(t, drivertest.QueueIDs(keys, 0, each), 1)
}

// TestSequenceGivesBack: held messages of a partition that must move are released at once, so that
// the partition is released and not lost.
func TestSequenceGivesBack(t *testing.T) {
	s := newScene(t)
	var mu sync.Mutex
	claims := map[driver.Assignment]bool{}
	consume := func() {
		order, err := sequence.New("q", &sequence.Memory{}, func(context.Context, struct{}, sequence.Delivery) error { return nil }, &sequence.Options{Wait: time.Hour})
		testbed.OK(t, err)
		source, err := order.Consume(t.Context(), s.queue(nil), "q", func(m driver.Received) (sequence.Event, error) {
			mu.Lock()
			defer mu.Unlock()
			claims[m.Claim] = true
			return sequence.Event{Key: m.Key, Position: sequence.Position{Seq: 2}}, nil // 1 never arrives
		}, &sequence.SourceOptions{Lease: lease})
		testbed.OK(t, err)
		t.Cleanup(func() {
			_ = source.Close(context.Background())
			_ = order.Close(context.Background())
		})
	}
	s.add(drivertest.QueueIDs(20, 0, 1)...)
	claimed := func() (all []driver.Assignment) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Collect(maps.Keys(claims))
	}
	consume()
	testbed.Eventually(t, "events of all partitions are held", time.Minute, func() bool { return len(claimed()) == partitions })
	before := claimed()
	consume()
	testbed.Eventually(t, "half of the partitions have moved", time.Minute, func() bool { return len(claimed()) == partitions*3/2 })
	for _, c := range before {
		if cause := context.Cause(c.Context()); cause != nil && cause != interlock.ErrReleased {
			t.Errorf("%s has ended by %v", c.Name(), cause)
		}
	}
}
