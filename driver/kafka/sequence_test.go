package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
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
	start := func(q *Queue) func(context.Context) { return queuetest.Sequence(t, q, s.topic, lease, &store, audit) }
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
		return queuetest.Drained(backlogs, err, 4)
	})
	audit.Check(t, drivertest.QueueIDs(keys, 0, each), 1)
}
