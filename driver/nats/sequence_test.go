package nats

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSequence feeds sequencers from a stream whose messages are out of order and repeated. One of
// two consumers is cut off meanwhile. Each event is taken once, in order, and nothing is left unsettled.
func TestSequence(t *testing.T) {
	s := newScene(t)
	const keys, each = 10, 60
	var store sequence.Memory // as a table that both processes have
	var mu sync.Mutex
	taken := map[string][]string{}
	handle := func(_ context.Context, _ struct{}, d sequence.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		taken[d.Key] = append(taken[d.Key], string(d.Payload))
		return nil
	}
	count := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, ids := range taken {
			n += len(ids)
		}
		return n
	}
	event := func(m driver.Received) (sequence.Event, error) {
		_, number, _ := strings.Cut(m.ID, "/")
		seq, err := strconv.ParseInt(number, 10, 64)
		return sequence.Event{Key: m.Key, Position: sequence.Position{Seq: seq + 1}, Payload: m.Payload}, err
	}
	start := func(q *Queue) func(context.Context) {
		order, err := sequence.New("q", &store, handle, &sequence.Options{Halt: true})
		if err != nil {
			t.Fatal(err)
		}
		source, err := order.Consume(t.Context(), q, "q", event, &sequence.SourceOptions{Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) {
			_ = source.Close(ctx)
			_ = order.Close(context.WithoutCancel(ctx))
		}
	}
	all := drivertest.ReorderedIDs(keys, each)
	s.add(all[:len(all)/2]...)
	path := testbed.NewProxy(t, s.addr)
	one := start(s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(path.Addr()))}}))
	defer one(context.Background())
	testbed.Eventually(t, "some events are taken", time.Minute, func() bool { return count() > 50 })
	q := s.queue(nil)
	two := start(q)
	defer two(context.Background())
	testbed.Eventually(t, "the partitions are shared", time.Minute, s.has(q, partitions/2))
	path.Cut()
	s.add(all[len(all)/2:]...)
	testbed.Eventually(t, "all events are taken", time.Minute, func() bool { return count() >= keys*each })
	testbed.Eventually(t, "nothing is left", time.Minute, func() bool {
		backlogs, err := q.Backlogs(t.Context(), "q")
		return err == nil && len(backlogs) == partitions && !slices.ContainsFunc(backlogs, func(b Backlog) bool { return b.Lag > 0 })
	})
	path.Heal()
	mu.Lock()
	defer mu.Unlock()
	for key, ids := range taken {
		if len(ids) != each || !slices.IsSorted(ids) {
			t.Errorf("key %s: %v", key, ids)
		}
	}
}
