package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// start consumes the topic of a scene.
func (s *scene) start(q *Queue, handler queue.Handler) queuetest.Consumer {
	s.Helper()
	return queuetest.Start(s.T, q, s.topic, lease, handler)
}

// group is the topic for the tests of groups.
func (s *scene) group(o *QueueOptions) drivertest.QueueGroup {
	return drivertest.QueueGroup{Add: s.add, Start: func(handler drivertest.QueueHandler) func() {
		return s.start(s.queue(o), handler).Stop
	}, Process: func(guard string) []string {
		return []string{"KAFKA_TEST_CHILD=" + s.addr, "KAFKA_TEST_TOPIC=" + s.topic, "KAFKA_TEST_GUARD=" + guard}
	}}
}

func TestRebalance(t *testing.T) {
	t.Parallel()
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
	cluster.Wait()
	testWithoutLeader(t, s.addr, cluster)
}

// testWithoutLeader: a consumer that joins while a partition has no leader handles the messages of the others.
func testWithoutLeader(t *testing.T, addr string, cluster *testbed.Ensemble) {
	t.Helper()
	s := &scene{t, addr, newTopicOf(t, addr, t.Name()+".single", 3, func(topic *kmsg.CreateTopicsRequestTopic) {
		topic.ReplicationFactor = 1
		config, one := kmsg.NewCreateTopicsRequestTopicConfig(), "1"
		config.Name, config.Value = "min.insync.replicas", &one
		topic.Configs = append(topic.Configs, config)
	})}
	a := drivertest.NewQueueAudit()
	before, after := drivertest.QueueIDs(20, 0, 1), drivertest.QueueIDs(20, 1, 1)
	var mu sync.Mutex
	var online, offline []string // of after
	c := s.start(s.queue(nil), func(ctx context.Context, m queue.Received) error {
		mu.Lock()
		defer mu.Unlock()
		next := after[slices.Index(before, m.ID)]
		if m.Claim.Name() == s.topic+"/0" {
			offline = append(offline, next)
		} else {
			online = append(online, next)
		}
		return a.Handle(ctx, m)
	})
	s.add(before...)
	a.Wait(t, len(before))
	c.Stop()
	b := s.leader(cluster, s.topic)
	b.Kill()
	s.start(s.queue(nil), a.Handle)
	fresh := drivertest.NewQueueAudit() // of a group that has no offsets yet
	s.start(s.queue(&QueueOptions{Group: s.topic + ".fresh"}), fresh.Handle)
	s.add(online...)
	a.Wait(t, len(before)+len(online))
	fresh.Wait(t, 2*len(online))
	b.Restart()
	s.add(offline...)
	for _, of := range []*drivertest.QueueAudit{a, fresh} {
		of.Wait(t, len(before)+len(after))
		of.Check(t, append(before, after...), 3)
	}
}

// leader is the broker that leads partition 0 of a topic.
func (s *scene) leader(cluster *testbed.Ensemble, topic string) (leader *testbed.Server) {
	s.Helper()
	c := client(s.T, seeds(s.addr), kgo.RequestTimeoutOverhead(time.Second))
	testbed.Eventually(s, topic+" has a leader", time.Minute, func() bool {
		r := kmsg.NewPtrMetadataRequest()
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &topic
		r.Topics = append(r.Topics, asked)
		answer, err := r.RequestWith(s.Context(), c)
		if err != nil {
			return false
		}
		parts := answer.Topics[0].Partitions
		first := slices.IndexFunc(parts, func(p kmsg.MetadataResponseTopicPartition) bool { return p.Partition == 0 })
		for _, b := range answer.Brokers {
			if first >= 0 && b.NodeID == parts[first].Leader {
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
	return queuetest.Serve(q, topic, guard)
}
