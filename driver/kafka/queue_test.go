package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(q.Close)
	return q
}

func (s *scene) join(o *QueueOptions) driver.QueueConsumer {
	s.Helper()
	return s.joinFor(o, lease)
}

func (s *scene) joinFor(o *QueueOptions, lease time.Duration) driver.QueueConsumer {
	s.Helper()
	c, err := s.queue(o).Join(s.Context(), s.topic, driver.QueueOptions{Owner: "test", Lease: lease})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { closeNow(c) })
	return c
}

func closeNow(c driver.QueueConsumer) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// crash ends a consumer without a goodbye.
func crash(c driver.QueueConsumer) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Close(ctx)
}

// add produces messages whose ids are "KEY/N".
func (s *scene) add(ids ...string) {
	s.Helper()
	var all []*kgo.Record
	for _, id := range ids {
		key, _, _ := cut(id)
		all = append(all, &kgo.Record{Topic: s.topic, Key: []byte(key), Value: []byte("of " + id), Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte(id)}}})
	}
	if err := client(s.T, seeds(s.addr), kgo.RequestTimeoutOverhead(time.Second)).ProduceSync(s.Context(), all...).FirstErr(); err != nil {
		s.Fatal(err)
	}
}

func cut(id string) (key, number string, ok bool) {
	for i := range id {
		if id[i] == '/' {
			return id[:i], id[i+1:], true
		}
	}
	return id, "", false
}

// receive receives messages until there are n.
func (s *scene) receive(c driver.QueueConsumer, n int) (all []driver.Received) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	for len(all) < n {
		some, err := c.Receive(ctx, driver.QueueLimit{Messages: n - len(all), Bytes: 1 << 20})
		if err != nil {
			s.Fatalf("received %v, then %v", idsOf(all), err)
		}
		all = append(all, some...)
	}
	return all
}

func (s *scene) settle(c driver.QueueConsumer, outcome driver.Outcome, all ...driver.Received) {
	s.Helper()
	var each []driver.Settlement
	for _, m := range all {
		each = append(each, driver.Settlement{Received: m, Outcome: outcome, Reason: "a reason"})
	}
	for i, err := range c.Settle(s.Context(), each) {
		if err != nil {
			s.Fatalf("settle %s: %v", all[i].ID, err)
		}
	}
}

// nothing requires that there is nothing to receive for a while.
func (s *scene) nothing(c driver.QueueConsumer, while time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), while)
	defer cancel()
	if some, err := c.Receive(ctx, driver.QueueLimit{Messages: 10, Bytes: 1 << 20}); len(some) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		s.Fatalf("received %v, %v; want nothing", idsOf(some), err)
	}
}

func idsOf(all []driver.Received) (ids []string) {
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	return ids
}

// TestCompletedBeyondThePrefix: a consumer dies with its first message unsettled and all others
// handled. The next one gets that message alone, as a second attempt, under a higher token.
func TestCompletedBeyondThePrefix(t *testing.T) {
	s := newScene(t, 1)
	var ids []string
	for i := range 50 {
		ids = append(ids, fmt.Sprintf("%d/1", i))
	}
	s.add(ids...)
	c := s.join(nil)
	was := s.receive(c, 50)
	s.settle(c, driver.Ack, was[1:]...)
	crash(c)
	c = s.join(nil)
	is := s.receive(c, 1)
	if is[0].ID != was[0].ID || is[0].Attempt != 2 || is[0].Claim.Token() <= was[0].Claim.Token() {
		t.Errorf("%s, attempt %d, token %v after %v", is[0].ID, is[0].Attempt, is[0].Claim.Token(), was[0].Claim.Token())
	}
	if cause := context.Cause(was[0].Claim.Context()); cause == nil {
		t.Error("the claim of the dead consumer goes on")
	}
	s.settle(c, driver.Ack, is...)
	s.add("new/1")
	if got := idsOf(s.receive(c, 1)); !slices.Equal(got, []string{"new/1"}) {
		t.Errorf("received %v", got)
	}
	s.nothing(c, 100*time.Millisecond)
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
	if _, err := s.queue(nil).Join(t.Context(), "missing", driver.QueueOptions{}); interlock.Kind(err) != interlock.Definite || err == nil {
		t.Errorf("a topic that does not exist: %v", err)
	}
}

func TestQueueSuite(t *testing.T) {
	drivertest.RunQueue(t, drivertest.QueueHarness{Partitioned: true, Start: func(t *testing.T) drivertest.QueueBackend {
		addr := testbed.Shared(t, testbed.Kafka).Addr()
		b := &queueBackend{addr: addr, topic: newTopic(t, addr, 1), client: client(t, kgo.SeedBrokers(addr))}
		b.letters = newTopicOf(t, addr, b.topic+".dlq", 1)
		q, err := OpenQueue("kafka://"+addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		b.Queue = q
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
	if err := b.Queue.Resume(b.of(name), key); err != nil {
		t.Error(err)
	}
}
