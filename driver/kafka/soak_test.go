package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSoak runs for INTERLOCK_SOAK_KAFKA, a duration: consumers join, leave, crash and are cut
// off, the broker is killed, handlers fail, while messages arrive. None is lost, and the order
// of keys holds.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_KAFKA"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_KAFKA is not set to a duration")
	}
	for name, o := range map[string]QueueOptions{"classic": {}, "server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testbed.Kafka(t)
			s := sceneOn(t, server.Addr(), 6)
			newTopicOf(t, server.Addr(), s.topic+".dlq", 1)
			k := &soak{scene: s, audit: drivertest.NewQueueAudit(), o: o}
			drivertest.RunQueueSoak(t, length, drivertest.QueueSoak{Add: s.add, Join: k.join, Audit: k.audit, Restart: func() {
				server.Kill()
				server.Restart()
			}})
		})
	}
}

type soak struct {
	*scene
	audit *drivertest.QueueAudit
	o     QueueOptions
}

// member is a consumer with a path of its own.
type member struct {
	*testbed.Proxy
	scene    *scene
	queue    *Queue
	consumer *queue.Consumer
}

func (m *member) Stop() { m.scene.stop(m.consumer) }

func (m *member) Crash() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.consumer.Close(ctx)
}

func (m *member) Done() bool {
	backlogs, err := m.queue.Backlogs(m.scene.Context(), m.scene.topic)
	lag := int64(0)
	for _, b := range backlogs {
		lag += b.Lag
	}
	return err == nil && len(backlogs) == 6 && lag == 0
}

func (k *soak) handle(ctx context.Context, m queue.Received) error {
	pause(ctx, time.Duration(rand.IntN(5))*time.Millisecond)
	n := rand.IntN(200)
	if n < 5 {
		return queue.Retry(time.Duration(rand.IntN(50))*time.Millisecond, errors.New("again"))
	}
	if err := k.audit.Handle(ctx, m); err != nil || n > 5 {
		return err
	}
	return queue.Dead(errors.New("dead"))
}

func (k *soak) join() drivertest.SoakMember {
	m := &member{Proxy: testbed.NewProxy(k, k.addr), scene: k.scene}
	o := k.o
	o.Client = []kgo.Opt{kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, m.Addr())
	})}
	m.queue = k.queue(&o)
	var err error
	if m.consumer, err = queue.New(k.Context(), m.queue, k.topic, k.handle, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: quiet(k.T)}); err != nil {
		k.Fatal(err)
	}
	k.Cleanup(m.Stop)
	return m
}
