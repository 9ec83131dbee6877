package nats

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func (s *scene) join(q *Queue) drivertest.QueueMember {
	s.Helper()
	return drivertest.JoinQueue(s.T, q, "q", driver.QueueOptions{Owner: "test", Lease: lease})
}

// TestLostAnswers: outcomes whose answers are lost are Uncertain, and recorded: a repetition
// succeeds, and nothing is delivered again.
func TestLostAnswers(t *testing.T) {
	s := newScene(t)
	path := testbed.NewProxy(t, s.addr)
	c := s.join(s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(path.Addr()))}}))
	s.add("a/1", "a/2", "a/3")
	all := c.Take(3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	path.DropReplies()
	for _, err := range c.Settle(ctx, drivertest.Settlements(driver.Ack, all[:2]...)) {
		if interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("settled without an answer: %v", err)
		}
	}
	path.Heal()
	c.Record(driver.Ack, all[:2]...)
	c.Leave()
	c = s.join(s.queue(nil))
	if got := c.Take(1); got[0].ID != "a/3" || got[0].Attempt != 1 {
		t.Errorf("received %s, attempt %d", got[0].ID, got[0].Attempt)
	}
}

// TestSettleWithoutServer: while no server is connected, nothing is sent, so the outcome is not unknown.
func TestSettleWithoutServer(t *testing.T) {
	s := newScene(t)
	path := testbed.NewProxy(t, s.addr)
	q := s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(path.Addr()))}})
	c := s.join(q)
	s.add("a/1")
	m := c.Take(1)
	path.Cut()
	testbed.OK(t, q.client.ForceReconnect())
	testbed.Eventually(t, "the client has no connection", time.Minute, q.client.IsReconnecting)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Settle(ctx, drivertest.Settlements(driver.Ack, m...))[0]; interlock.Kind(err) != interlock.Retryable {
		t.Errorf("settled without a server: %v", err)
	}
	path.Heal()
}

// deaf is a client whose first claims of partitions have an unknown outcome, and whose first members are
// written without an answer.
type deaf struct {
	jetstream.JetStream
	left, members *atomic.Int32
}

func (d deaf) KeyValue(ctx context.Context, name string) (jetstream.KeyValue, error) {
	kv, err := d.JetStream.KeyValue(ctx, name)
	return deafBucket{kv, d.left, d.members}, err
}

type deafBucket struct {
	jetstream.KeyValue
	left, members *atomic.Int32
}

func (d deafBucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if strings.Contains(key, ".owner.") && d.left.Load() > 0 {
		return 0, jetstream.ErrKeyExists
	}
	written, err := d.KeyValue.Update(ctx, key, value, revision)
	if err == nil && strings.Contains(key, ".member.") && d.members.Add(-1) >= 0 {
		return 0, nats.ErrTimeout
	}
	return written, err
}

func (d deafBucket) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	if strings.Contains(key, ".owner.") && d.left.Add(-1) >= 0 {
		return nil, nats.ErrTimeout
	}
	return d.KeyValue.Get(ctx, key)
}

// TestClaimsFail: a member claims again what it could not claim, without an event of its group.
func TestClaimsFail(t *testing.T) {
	s := newScene(t)
	var left, none atomic.Int32
	left.Store(partitions)
	q := s.queue(nil)
	q.js = deaf{q.js, &left, &none}
	s.add("a/1")
	c := drivertest.JoinQueue(t, q, "q", driver.QueueOptions{Owner: "test", Lease: time.Hour})
	c.Record(driver.Ack, c.Take(1)...)
}

// TestFirstWrite: a member whose first write has no answer is one member. The former one would have its share
// of the partitions for a lease.
func TestFirstWrite(t *testing.T) {
	s := newScene(t)
	var none, members atomic.Int32
	members.Store(1)
	q := s.queue(nil)
	q.js = deaf{q.js, &none, &members}
	drivertest.JoinQueue(t, q, "q", driver.QueueOptions{Owner: "test", Lease: time.Hour})
	testbed.Eventually(t, "all partitions have an owner", 30*time.Second, s.has(q, partitions))
}

// TestDeletedMessages: the stream has deleted unhandled messages. That is an error once, and the
// consumer continues with the remaining messages.
func TestDeletedMessages(t *testing.T) {
	s := newScene(t)
	s.add("a/1", "a/2", "a/3", "a/4")
	q := s.queue(nil)
	c := s.join(q)
	c.Record(driver.Ack, c.Take(1)...)
	testbed.Eventually(t, "the empty partitions are read to the end", time.Minute, func() bool {
		backlogs, err := q.Backlogs(t.Context(), "q")
		return err == nil && len(backlogs) == partitions && !slices.ContainsFunc(backlogs, func(b Backlog) bool { return b.Prefix != 2 && b.Prefix != 5 })
	})
	c.Leave()
	testbed.OK(t, s.stream.Purge(t.Context(), jetstream.WithPurgeSequence(4)))
	c = s.join(q)
	c.Fails(func(err error) bool {
		return interlock.Kind(err) == interlock.Definite && strings.Contains(err.Error(), "messages 2 to 3 were deleted")
	})
	got := c.Take(1)
	if got[0].ID != "a/4" {
		t.Errorf("received %s", got[0].ID)
	}
	c.Record(driver.Ack, got...)
}

// TestPositionIsDeleted: an operator has deleted the position of a partition. The next consumer begins with the first
// message, under a higher token.
func TestPositionIsDeleted(t *testing.T) {
	s := newScene(t)
	s.add("a/1")
	c := s.join(s.queue(nil))
	was := c.Take(1)
	c.Record(driver.Ack, was...)
	c.Leave()
	bucket, err := s.js.KeyValue(t.Context(), DefaultBucket)
	testbed.OK(t, err)
	for p := range partitions {
		testbed.OK(t, bucket.Delete(t.Context(), fmt.Sprintf("%s.%s.q.position.%d", DefaultGroup, s.prefix, p)))
	}
	c = s.join(s.queue(nil))
	again := c.Take(1)
	if again[0].ID != "a/1" || again[0].Claim.Token() <= was[0].Claim.Token() {
		t.Errorf("received %s under %v after %v", again[0].ID, again[0].Claim.Token(), was[0].Claim.Token())
	}
	c.Record(driver.Ack, again...)
}

// lagging is a client of a cluster that puts consumers on a replica without the latest messages.
type lagging struct{ jetstream.JetStream }

type leader struct {
	jetstream.Stream
	elsewhere int // how many of the next consumers are on the replica
}

type replica struct{ jetstream.Consumer }

func (l lagging) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := l.JetStream.Stream(ctx, name)
	return &leader{Stream: s}, err
}

func (l lagging) CreateConsumer(ctx context.Context, stream string, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c, err := l.JetStream.CreateConsumer(ctx, stream, config)
	return replica{c}, err
}

func (s *leader) CachedInfo() *jetstream.StreamInfo {
	info := *s.Stream.CachedInfo()
	info.Cluster = &jetstream.ClusterInfo{Leader: "a"}
	return &info
}

func (s *leader) CreateConsumer(ctx context.Context, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c, err := s.Stream.CreateConsumer(ctx, config)
	if s.elsewhere--; s.elsewhere >= 0 {
		return replica{c}, err
	}
	return c, err
}

func (c replica) CachedInfo() *jetstream.ConsumerInfo {
	return &jetstream.ConsumerInfo{Name: c.Consumer.CachedInfo().Name, Cluster: &jetstream.ClusterInfo{Leader: "b"}}
}

func (c replica) Info(context.Context) (*jetstream.ConsumerInfo, error) { return c.CachedInfo(), nil }

// TestReplicaLags: a replica that catches up has no messages to read, and the leader has some. They are
// delivered once the replica has them.
func TestReplicaLags(t *testing.T) {
	s := newScene(t)
	q := s.queue(nil)
	q.js = lagging{q.js}
	s.add("a/1", "a/2")
	c := s.join(q)
	c.Record(driver.Ack, c.Take(2)...)
}

// TestLagIsOfTheLeader: a replica that catches up does not count.
func TestLagIsOfTheLeader(t *testing.T) {
	s := newScene(t)
	s.add("a/1", "a/2", "a/3", "b/1")
	got, err := s.queue(nil).lag(t.Context(), &leader{Stream: s.stream, elsewhere: 3}, s.prefix+".q.*", 2)
	if err != nil || got != 3 {
		t.Errorf("%d messages, %v", got, err)
	}
}

// TestFullPartition: a parked key that fills the window stops its partition, and nothing is lost.
func TestFullPartition(t *testing.T) {
	s := newScene(t)
	q := s.queue(&QueueOptions{Window: 10})
	var all []string
	for i := range 3000 {
		all = append(all, fmt.Sprintf("a/%04d", i))
	}
	s.add(all...)
	c := s.join(q)
	c.Record(driver.Park, c.Take(1)...)
	testbed.Eventually(t, "the backlog shows the parked key", time.Minute, func() bool {
		backlogs, err := q.Backlogs(t.Context(), "q")
		return err == nil && slices.ContainsFunc(backlogs, func(b Backlog) bool { return b.Lag == 3000 && slices.Equal(b.Parked, []string{"a"}) && b.Age > 0 })
	})
	c.Nothing(300 * time.Millisecond)
	inner := c.QueueConsumer.(*consumer)
	inner.Mu.Lock()
	for _, a := range inner.Assignments() {
		if len(a.Offsets.Parked()) > 0 && a.Offsets.Unread() > 10+maxReady+2*perPull {
			t.Errorf("the partition was read to %d", a.Offsets.Unread())
		}
		if ready, _ := a.Offsets.Ahead(); ready > 0 {
			t.Errorf("%d messages of a parked key are ready", ready)
		}
	}
	inner.Mu.Unlock()
	testbed.OK(t, q.Resume("q", "a"))
	var got []string
	for len(got) < len(all) {
		some := c.Take(min(500, len(all)-len(got)))
		c.Record(driver.Ack, some...)
		got = append(got, drivertest.ReceivedIDs(some)...)
	}
	if !slices.Equal(got, all) {
		t.Errorf("received %v", got)
	}
	if err := q.Resume("q", "a"); interlock.Kind(err) != interlock.Definite || err == nil {
		t.Errorf("resumed a key that is not parked: %v", err)
	}
}

// TestDeadLetterStreamIsMissing: the message is not lost, and its position is not recorded.
func TestDeadLetterStreamIsMissing(t *testing.T) {
	s := newScene(t)
	s.add("a/1")
	c := s.join(s.queue(&QueueOptions{DeadLetters: "missing." + s.prefix}))
	m := c.Take(1)
	if err := c.Settle(t.Context(), drivertest.Settlements(driver.Dead, m...))[0]; err == nil || interlock.Kind(err) == interlock.Definite || !strings.Contains(err.Error(), "missing.") {
		t.Errorf("settled: %v", err)
	}
	c.Leave()
	c = s.join(s.queue(nil))
	if got := c.Take(1); got[0].ID != "a/1" {
		t.Errorf("received %v", drivertest.ReceivedIDs(got))
	}
}

// TestMessagesOfOthers: messages without our headers have no key, and their place as the id;
// headers that are not percent-encoded are taken as they are.
func TestMessagesOfOthers(t *testing.T) {
	s := newScene(t)
	for _, m := range []*nats.Msg{{Data: []byte("plain")}, {Header: nats.Header{HeaderID: {"50%"}, HeaderKey: {"100%"}, "Empty": {}, "Two": {"1", "2"}}}} {
		m.Subject = s.prefix + ".q.0"
		_, err := s.js.PublishMsg(t.Context(), m)
		testbed.OK(t, err)
	}
	c := s.join(s.queue(nil))
	got := c.Take(2)
	if got[0].ID != s.prefix+"/1" || got[0].Key != "" || string(got[0].Payload) != "plain" || got[0].Headers != nil {
		t.Errorf("%+v", got[0])
	}
	if got[1].ID != "50%" || got[1].Key != "100%" || got[1].Headers["Two"] != "1" || len(got[1].Headers) != 1 {
		t.Errorf("%+v", got[1])
	}
	c.Record(driver.Ack, got...)
}

func TestQueueBadInput(t *testing.T) {
	s := newScene(t)
	for name, o := range map[string]*QueueOptions{"drain": {Drain: -1}, "window": {Window: -1}, "bytes": {Bytes: -1}, "partitions": {Partitions: -1},
		"too many partitions": {Partitions: maxPartitions + 1}, "group": {Group: "a.b"}, "bucket": {Bucket: "*"}, "dead letters": {DeadLetters: "a..b"}} {
		if _, err := OpenQueue("nats://"+s.addr, o); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenQueue("nats://"+s.addr+"/shop:eu", nil); interlock.Kind(err) != interlock.Bug || err == nil {
		t.Errorf("a prefix that no key can have: %v", err)
	}
	newStream(t, s.js, s.prefix+"-one", s.prefix+".split.0")
	newStream(t, s.js, s.prefix+"-two", s.prefix+".split.3")
	_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: s.prefix + "-work", Subjects: []string{s.prefix + ".work.*"}, Retention: jetstream.WorkQueuePolicy})
	testbed.OK(t, err)
	join := func(q *Queue, name string) error {
		_, err := q.Join(t.Context(), name, driver.QueueOptions{Lease: lease})
		return err
	}
	q := s.queue(nil)
	for _, name := range []string{"missing", "split", "work"} {
		if err := join(q, name); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("joined %s: %v", name, err)
		}
	}
	s.join(q)
	other, err := OpenQueue("nats://"+s.addr+"/"+s.prefix, &QueueOptions{Partitions: 2})
	testbed.OK(t, err)
	defer other.Close()
	if err := join(other, "q"); interlock.Kind(err) != interlock.Definite || !strings.Contains(fmt.Sprint(err), "the queue has 4 partitions, not 2") {
		t.Errorf("joined with another number of partitions: %v", err)
	}
	gone := testbed.NewProxy(t, s.addr)
	gone.Cut()
	away := s.queue(&QueueOptions{Client: []nats.Option{nats.SetCustomDialer(by(gone.Addr()))}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := away.Join(ctx, "q", driver.QueueOptions{}); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("joined without a server: %v", err)
	}
}
