package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// start consumes the topic of a scene.
func (s *scene) start(o *QueueOptions, handler queue.Handler) *queue.Consumer {
	s.Helper()
	c, err := queue.New(s.Context(), s.queue(o), s.topic, handler, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: quiet(s.T)})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.stop(c) })
	return c
}

func (s *scene) stop(c *queue.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

func quiet(t *testing.T) *observe.Queue {
	return &observe.Queue{Failed: func(observe.QueueFailed) {}, Lost: func(observe.QueueLost) {},
		Trouble: func(e observe.QueueTrouble) { t.Logf("%s %s: %v", e.Op, e.Queue, e.Err) }}
}

// group is the topic for the tests of groups.
func (s *scene) group(o *QueueOptions) drivertest.QueueGroup {
	return drivertest.QueueGroup{Add: s.add, Start: func(handler drivertest.QueueHandler) func() {
		c := s.start(o, handler)
		return func() { s.stop(c) }
	}, Process: func(guard string) []string {
		return []string{"KAFKA_TEST_CHILD=" + s.addr, "KAFKA_TEST_TOPIC=" + s.topic, "KAFKA_TEST_GUARD=" + guard}
	}}
}

func TestRebalance(t *testing.T) {
	for name, o := range map[string]*QueueOptions{"classic": nil, "server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) { newScene(t, 4).group(o).Rebalance(t) })
	}
}

func TestRevokeWaits(t *testing.T) { newScene(t, 4).group(nil).RevokeWaits(t) }

func TestZombie(t *testing.T) { newScene(t, 2).group(nil).Zombie(t) }

// TestBrokerRestarts: consumers go on after the broker was killed.
func TestBrokerRestarts(t *testing.T) {
	t.Parallel()
	server := testbed.Kafka(t)
	s := &scene{t, server.Addr(), newTopic(t, server.Addr(), 4)}
	s.group(nil).Survives(t, func() {
		server.Kill()
		server.Restart()
	})
}

// child is a consumer's process.
func child(addr, topic, guard string) error {
	q, err := OpenQueue("kafka://"+addr, nil)
	if err != nil {
		return err
	}
	_, err = queue.New(context.Background(), q, topic, drivertest.WriteTo(guard, 500*time.Millisecond), &queue.Options{Lease: 2 * time.Second, Hooks: &observe.Queue{Log: observe.Silent}})
	if err != nil {
		return err
	}
	select {}
}
