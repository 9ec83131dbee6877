package nats

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// partitions of the queues of scenes.
const partitions = 4

// scene is the queue "q" with subjects of a test, and consumers of it.
type scene struct {
	*testing.T
	addr, prefix string
	js           jetstream.JetStream
	stream       jetstream.Stream
}

func newScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return sceneOn(t, testbed.Shared(t, testbed.NATS).Addr(), 1)
}

func sceneOn(t *testing.T, addr string, replicas int) *scene {
	t.Helper()
	s := &scene{T: t, addr: addr, prefix: "s" + rand.Text()}
	s.js = dial(t, s.addr)
	var err error
	if s.stream, err = s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: s.prefix, Subjects: []string{s.prefix + ".q.*"}, Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	newStream(t, s.js, s.prefix+"-dlq", "dlq."+s.prefix+".q")
	return s
}

// queue opens the queue; o may be nil.
func (s *scene) queue(o *QueueOptions) *Queue {
	s.Helper()
	var options QueueOptions
	if o != nil {
		options = *o
	}
	options.Partitions = partitions
	options.Client = append(options.Client, nats.ReconnectWait(20*time.Millisecond), nats.PingInterval(time.Second))
	q, err := OpenQueue("nats://"+s.addr+"/"+s.prefix, &options)
	testbed.OK(s, err)
	s.Cleanup(q.Close)
	return q
}

// add sends messages whose ids are "KEY/N", in order, until all are stored.
func (s *scene) add(ids ...string) {
	s.Helper()
	sink, err := OpenSink("nats://"+s.addr+"/"+s.prefix, &SinkOptions{Partitions: partitions, Client: []nats.Option{nats.PingInterval(time.Second)}})
	testbed.OK(s, err)
	defer sink.Close()
	var left []driver.Message
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		left = append(left, driver.Message{ID: id, Topic: "q", Key: key, Payload: []byte("of " + id)})
	}
	testbed.Eventually(s, "the messages are stored", time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(s.Context(), 5*time.Second)
		defer cancel()
		var again []driver.Message
		for i, err := range sink.Publish(ctx, left) {
			if err != nil {
				again = append(again, left[i])
			}
		}
		left = again
		return len(left) == 0
	})
}

// start consumes the queue.
func (s *scene) start(q *Queue, handler queue.Handler) queuetest.Consumer {
	s.Helper()
	return queuetest.Start(s.T, q, "q", lease, handler)
}

// group returns the queue for the tests of groups.
func (s *scene) group() drivertest.QueueGroup {
	return drivertest.QueueGroup{Add: s.add, Start: func(handler drivertest.QueueHandler) func() {
		return s.start(s.queue(nil), handler).Stop
	}, Process: func(guard string) []string {
		return []string{"NATS_TEST_CHILD=nats://" + s.addr + "/" + s.prefix, "NATS_TEST_GUARD=" + guard}
	}}
}

func TestRebalance(t *testing.T) { newScene(t).group().Rebalance(t) }

func TestRevokeWaits(t *testing.T) { newScene(t).group().RevokeWaits(t) }

func TestZombie(t *testing.T) { newScene(t).group().Zombie(t) }

// TestServerRestarts: consumers continue after the server was killed and restarted.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := testbed.NATS(t)
	sceneOn(t, server.Addr(), 1).group().Survives(t, func() func() {
		server.Kill()
		server.Restart()
		return func() {}
	})
}

// TestLeaderLost kills the leader of the stream among three servers, and then pauses the leader
// of the bucket of positions. Two servers have each message and position.
func TestLeaderLost(t *testing.T) {
	t.Parallel()
	cluster := testbed.NATSCluster(t, 3)
	s := sceneOn(t, strings.Join(cluster.Addrs(), ","), 3)
	leader := func(stream string) (server *testbed.Server) {
		testbed.Eventually(t, stream+" has a leader", time.Minute, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			found, err := s.js.Stream(ctx, stream)
			if err == nil && found.CachedInfo().Cluster.Leader != "" {
				server = cluster.Peers[int(found.CachedInfo().Cluster.Leader[1]-'0')]
			}
			return server != nil
		})
		return server
	}
	s.group().Survives(t, func() func() {
		server := leader(s.prefix)
		server.Kill()
		return func() {
			server.Restart()
			cluster.Wait()
		}
	}, func() func() {
		server := leader("KV_" + DefaultBucket)
		server.Pause()
		return server.Resume
	})
}

// child runs a consumer in its own process.
func child(address, guard string) error {
	q, err := OpenQueue(address, &QueueOptions{Partitions: partitions})
	if err != nil {
		return err
	}
	return queuetest.Serve(q, "q", guard)
}

// TestCut: a disconnected consumer loses its partitions when its lease expires, and another one
// handles their messages under higher tokens. After it reconnects, it claims its share again.
func TestCut(t *testing.T) {
	s := newScene(t)
	path := testbed.NewProxy(t, s.addr)
	a := drivertest.NewQueueAudit()
	far := s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(path.Addr()))}})
	s.start(far, a.Handle)
	all := drivertest.QueueIDs(10, 0, 10)
	s.add(all...)
	a.Wait(t, len(all))
	near := s.queue(nil)
	s.start(near, a.Handle)
	path.Cut()
	testbed.Eventually(t, "the other one has all partitions", time.Minute, s.has(near, partitions))
	more := drivertest.QueueIDs(10, 10, 10)
	s.add(more...)
	a.Wait(t, len(all)+len(more))
	a.Check(t, append(all, more...), 3)
	path.Heal()
	testbed.Eventually(t, "the partitions are shared again", time.Minute, s.has(far, partitions/2))
}

// has returns a condition: consumers of a queue own n partitions.
func (s *scene) has(q *Queue, n int) func() bool {
	return func() bool {
		backlogs, err := q.Backlogs(s.Context(), "q")
		return err == nil && len(backlogs) == n
	}
}

// TestStreamIsCreatedAgain: sequence numbers restart, and tokens do not.
func TestStreamIsCreatedAgain(t *testing.T) { newScene(t).replaceStream(false) }

// TestStreamIsCreatedAgainMeanwhile: the same while it is consumed.
func TestStreamIsCreatedAgainMeanwhile(t *testing.T) { newScene(t).replaceStream(true) }

func (s *scene) replaceStream(meanwhile bool) {
	s.Helper()
	q := s.queue(nil)
	handled := make(chan queue.Received, 10)
	handle := func(_ context.Context, m queue.Received) error {
		handled <- m
		return nil
	}
	s.add("a/1", "a/2", "a/3")
	c := s.start(q, handle)
	var last driver.Received
	for range 3 {
		last = <-handled
	}
	if !meanwhile {
		c.Stop()
	}
	testbed.OK(s, s.js.DeleteStream(s.Context(), s.prefix))
	s.stream = newStream(s.T, s.js, s.prefix, s.prefix+".q.*")
	s.add("a/4", "a/5", "a/6", "a/7", "a/8", "a/9") // beyond the former position
	if !meanwhile {
		s.start(q, handle)
	}
	m := testbed.Receive(s, handled, "the first message of the new stream")
	if m.ID != "a/4" || m.Place > last.Place || m.Claim.Token() <= last.Claim.Token() || m.Claim.Name() != last.Claim.Name() {
		s.Errorf("%s at %d under %v, after %s at %d under %v", m.ID, m.Place, m.Claim.Token(), last.ID, last.Place, last.Claim.Token())
	}
}

// TestMembershipsEnd: closed consumers leave no member.
func TestMembershipsEnd(t *testing.T) {
	s := newScene(t)
	q := s.queue(nil)
	one, two := s.start(q, nothing), s.start(q, nothing)
	testbed.Eventually(t, "all partitions have owners", time.Minute, s.has(q, partitions))
	one.Stop()
	two.Stop()
	kv, err := s.js.KeyValue(t.Context(), DefaultBucket)
	testbed.OK(t, err)
	keys, err := kv.ListKeysFiltered(t.Context(), DefaultGroup+"."+s.prefix+".q.member.*")
	testbed.OK(t, err)
	for key := range keys.Keys() {
		t.Errorf("%s is left", key)
	}
}

func nothing(context.Context, queue.Received) error { return nil }
