package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// lease is long enough for a busy machine.
const lease = 6 * time.Second

// scene is a topic of a test, and consumers of it.
type scene struct {
	*testing.T
	addr, topic string
}

func newScene(t *testing.T, partitions int32) *scene {
	t.Helper()
	t.Parallel()
	return sceneOn(t, testbed.Shared(t, testbed.Kafka).Addr(), partitions)
}

func sceneOn(t *testing.T, addr string, partitions int32) *scene {
	t.Helper()
	return &scene{t, addr, newTopic(t, addr, partitions)}
}

// seeds are the brokers of host:port[,host:port…].
func seeds(addr string) kgo.Opt { return kgo.SeedBrokers(strings.Split(addr, ",")...) }

func (s *scene) queue(o *QueueOptions) *Queue {
	s.Helper()
	q, err := OpenQueue("kafka://"+s.addr, o)
	testbed.OK(s, err)
	s.Cleanup(q.Close)
	return q
}

func (s *scene) join(o *QueueOptions) drivertest.QueueMember {
	s.Helper()
	return s.joinOn(s.queue(o), lease)
}

func (s *scene) joinOn(q driver.Queue, lease time.Duration) drivertest.QueueMember {
	s.Helper()
	return drivertest.JoinQueue(s.T, q, s.topic, driver.QueueOptions{Owner: "test", Lease: lease})
}

// add produces messages whose ids are "KEY/N".
func (s *scene) add(ids ...string) {
	s.Helper()
	var all []*kgo.Record
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		all = append(all, &kgo.Record{Topic: s.topic, Key: []byte(key), Value: []byte("of " + id), Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte(id)}}})
	}
	testbed.OK(s, client(s.T, seeds(s.addr), kgo.RequestTimeoutOverhead(time.Second)).ProduceSync(s.Context(), all...).FirstErr())
}

func TestQueueBadInput(t *testing.T) {
	s := newScene(t, 1)
	for name, o := range map[string]*QueueOptions{"drain": {Drain: -1}, "window": {Window: -1}, "bytes": {Bytes: -1}, "metadata": {Metadata: 1}} {
		if _, err := OpenQueue("kafka://"+s.addr, o); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenQueue("kafka://"+s.addr+"/topic", nil); interlock.Kind(err) != interlock.Bug || err == nil {
		t.Errorf("a URL with a topic: %v", err)
	}
	if _, err := s.queue(nil).Join(t.Context(), "missing", driver.QueueOptions{}); interlock.Kind(err) != interlock.Definite || err == nil ||
		!strings.Contains(err.Error(), "create the topic") {
		t.Errorf("a topic that does not exist: %v", err)
	}
}

func TestQueueSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunQueue(t, drivertest.QueueHarness{Partitioned: true, Start: func(t *testing.T) drivertest.QueueBackend {
		addr := testbed.Shared(t, testbed.Kafka).Addr()
		b := &queueBackend{addr: addr, topic: newTopic(t, addr, 1), client: client(t, kgo.SeedBrokers(addr))}
		b.letters = newTopicOf(t, addr, b.topic+".dlq", 1)
		b.Queue = (&scene{T: t, addr: addr}).queue(nil)
		return b
	}})
}

// queueBackend has the queue "q" in a topic of the test.
type queueBackend struct {
	*Queue
	addr, topic, letters string
	client               *kgo.Client
}

func (b *queueBackend) of(name string) string {
	if name == "q" {
		return b.topic
	}
	return name
}

func (b *queueBackend) Join(ctx context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	return b.Queue.Join(ctx, b.of(name), o)
}

func (b *queueBackend) Add(t *testing.T, name string, messages ...driver.QueueMessage) error {
	var all []*kgo.Record
	for _, m := range messages {
		r := &kgo.Record{Topic: b.of(name), Value: m.Payload, Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte(m.ID)}}}
		if m.Key != "" {
			r.Key = []byte(m.Key)
		}
		for key, value := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
		all = append(all, r)
	}
	return b.client.ProduceSync(t.Context(), all...).FirstErr()
}

func (b *queueBackend) DeadLetters(t *testing.T, _ string) (ids []string) {
	for _, m := range read(t.Context(), b.addr, b.letters, 1) {
		if m.Headers[HeaderReason] != "reason of "+m.ID || m.Headers[HeaderAttempts] != "1" {
			t.Errorf("%+v", m)
		}
		ids = append(ids, m.ID)
	}
	return ids
}

func (b *queueBackend) Replay(t *testing.T, _ string, _ ...string) {
	t.Error("dead letters do not return")
}

func (b *queueBackend) Resume(t *testing.T, name, key string) {
	testbed.OK(t, b.Queue.Resume(b.of(name), key))
}
