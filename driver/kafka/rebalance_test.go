package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// start consumes the topic of a scene.
func (s *scene) start(o *QueueOptions, handler queue.Handler) *queue.Consumer {
	s.Helper()
	return s.startOn(s.queue(o), handler)
}

func (s *scene) startOn(q *Queue, handler queue.Handler) *queue.Consumer {
	s.Helper()
	c, err := queue.New(s.Context(), q, s.topic, handler, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: quiet(s.T)})
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
	sceneOn(t, server.Addr(), 4).group(nil).Survives(t, func() func() {
		server.Kill()
		server.Restart()
		return func() {}
	})
}

// TestLeaderLost: of three brokers the one that coordinates the group is killed, and then the one that
// leads the partitions stops and goes on. Two replicas have each message, and each commit.
func TestLeaderLost(t *testing.T) {
	t.Parallel()
	cluster := testbed.KafkaCluster(t, 3)
	s := sceneOn(t, strings.Join(cluster.Addrs(), ","), 1)
	// A broker that stops is noticed when it does not answer.
	o := &QueueOptions{Client: []kgo.Opt{kgo.RequestTimeoutOverhead(time.Second)}}
	s.group(o).Survives(t, func() func() {
		b := s.leader(cluster, "__consumer_offsets")
		b.Kill()
		return func() {
			b.Restart()
			cluster.Wait()
		}
	}, func() func() {
		b := s.leader(cluster, s.topic)
		b.Pause()
		return b.Resume
	})
}

// leader is the broker that leads the first partition of a topic.
func (s *scene) leader(cluster *testbed.Ensemble, topic string) (leader *testbed.Server) {
	s.Helper()
	c := client(s.T, seeds(s.addr), kgo.RequestTimeoutOverhead(time.Second))
	testbed.Eventually(s, topic+" has a leader", time.Minute, func() bool {
		r := kmsg.NewPtrMetadataRequest()
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &topic
		r.Topics = append(r.Topics, asked)
		answer, err := r.RequestWith(s.Context(), c)
		if err != nil || len(answer.Topics[0].Partitions) == 0 {
			return false
		}
		for _, b := range answer.Brokers {
			if b.NodeID == answer.Topics[0].Partitions[0].Leader {
				leader = cluster.Peers[slices.Index(cluster.Addrs(), fmt.Sprintf("%s:%d", b.Host, b.Port))]
			}
		}
		return leader != nil
	})
	return leader
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
