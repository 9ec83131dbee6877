package kafka

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSequence feeds sequencers from a topic whose messages are out of order and repeated. One of
// two consumers leaves meanwhile, with events that are held. Each event is taken once, in order, and nothing is left unsettled.
func TestSequence(t *testing.T) {
	s := newScene(t, 4)
	const keys, each = 10, 60
	var store sequence.Memory // as a table that both processes have
	audit := drivertest.NewQueueAudit()
	handle := func(_ context.Context, _ struct{}, d sequence.Delivery) error {
		return audit.Write(d.Key, 1, d.Key, string(d.Payload))
	}
	event := func(m driver.Received) (sequence.Event, error) {
		_, number, _ := strings.Cut(m.ID, "/")
		seq, err := strconv.ParseInt(number, 10, 64)
		return sequence.Event{Key: m.Key, Position: sequence.Position{Seq: seq + 1}, Payload: []byte(m.ID)}, err
	}
	start := func(q *Queue) func(context.Context) {
		order, err := sequence.New("q", &store, handle, &sequence.Options{Halt: true})
		if err != nil {
			t.Fatal(err)
		}
		source, err := order.Consume(t.Context(), q, s.topic, event, &sequence.SourceOptions{Lease: lease})
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
	one := start(s.queue(nil))
	audit.Wait(t, 50)
	q := s.queue(nil)
	two := start(q)
	defer two(context.Background())
	s.add(all[len(all)/2:]...)
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	one(dead)
	audit.Wait(t, keys*each)
	testbed.Eventually(t, "nothing is left", time.Minute, func() bool {
		backlogs, err := q.Backlogs(t.Context(), s.topic)
		return err == nil && len(backlogs) == 4 && !slices.ContainsFunc(backlogs, func(b Backlog) bool { return b.Lag > 0 })
	})
	audit.Check(t, drivertest.QueueIDs(keys, 0, each), 1)
}
