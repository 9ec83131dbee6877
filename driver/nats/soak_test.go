package nats

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSoak runs drivertest.RunQueueSoak for INTERLOCK_SOAK_NATS, a duration.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_NATS"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_NATS is not set to a duration")
	}
	server := testbed.NATS(t)
	s := sceneOn(t, server.Addr(), 1)
	drivertest.RunQueueSoak(t, length, drivertest.QueueSoak{Add: s.add, Retry: queue.Retry, Dead: queue.Dead, Restart: func() {
		server.Kill()
		server.Restart()
	}, Join: func(handler drivertest.QueueHandler) drivertest.SoakMember {
		path := testbed.NewProxy(t, s.addr)
		q := s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(path.Addr()))}})
		return drivertest.SoakMember{Path: path, Consumer: s.start(q, handler), Done: func() bool {
			backlogs, err := q.Backlogs(t.Context(), "q")
			return queuetest.Drained(backlogs, err, partitions)
		}}
	}})
}
