package nats

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSoak runs for INTERLOCK_SOAK_NATS, a duration: consumers join, leave, crash and are cut
// off, the server is killed, handlers fail, while messages arrive. None is lost, and the order
// of keys holds.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_NATS"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_NATS is not set to a duration")
	}
	server := testbed.NATS(t)
	s := sceneOn(t, server.Addr(), 1)
	audit := drivertest.NewQueueAudit()
	handle := func(ctx context.Context, m queue.Received) error {
		pause(ctx, time.Duration(rand.IntN(5))*time.Millisecond)
		n := rand.IntN(200)
		if n < 5 {
			return queue.Retry(time.Duration(rand.IntN(50))*time.Millisecond, errors.New("again"))
		}
		if err := audit.Handle(ctx, m); err != nil || n > 5 {
			return err
		}
		return queue.Dead(errors.New("dead"))
	}
	drivertest.RunQueueSoak(t, length, drivertest.QueueSoak{Audit: audit, Add: s.add, Join: func() drivertest.SoakMember {
		m := &soaked{Proxy: testbed.NewProxy(t, s.addr), scene: s}
		m.queue = s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(m.Addr()))}})
		m.consumer = s.startOn(m.queue, handle)
		return m
	}, Restart: func() {
		server.Kill()
		server.Restart()
	}})
}

// soaked is a consumer with a path of its own.
type soaked struct {
	*testbed.Proxy
	scene    *scene
	queue    *Queue
	consumer *queue.Consumer
}

func (m *soaked) Stop() { m.scene.stop(m.consumer) }

func (m *soaked) Crash() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.consumer.Close(ctx)
}

func (m *soaked) Done() bool {
	backlogs, err := m.queue.Backlogs(m.scene.Context(), "q")
	lag := int64(0)
	for _, b := range backlogs {
		lag += b.Lag
	}
	return err == nil && len(backlogs) == partitions && lag == 0
}
