package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestStaticMember: a static member that restarts gets its partition at once, under a higher
// token; a second one with its InstanceID ends it with a clear error.
func TestStaticMember(t *testing.T) {
	s := newScene(t, 1)
	o := &QueueOptions{InstanceID: "pod-0"}
	s.add("a/1", "a/2", "a/3")
	one := s.joinOn(s.queue(o), time.Minute)
	first := one.Take(1)
	one.Record(driver.Ack, first...)
	one.Leave()
	two := s.joinOn(s.queue(o), time.Minute)
	second := two.Take(1)
	if second[0].ID != "a/2" || second[0].Claim.Token() <= first[0].Claim.Token() {
		t.Errorf("%s under %v after %v", second[0].ID, second[0].Claim.Token(), first[0].Claim.Token())
	}
	three := s.joinOn(s.queue(o), time.Minute)
	two.Fails(func(err error) bool {
		return interlock.Kind(err) == interlock.Bug && strings.Contains(err.Error(), "same InstanceID")
	})
	third := three.Take(2)
	if errs := two.Settle(t.Context(), drivertest.Settlements(driver.Ack, second...)); !errors.Is(errs[0], interlock.ErrLost) {
		t.Errorf("the fenced consumer settles: %v", errs[0])
	}
	three.Record(driver.Ack, third...)
	three.Leave()
	if got := s.instances(); !slices.Equal(got, []string{"pod-0"}) {
		t.Errorf("after a restart begins the group has %v", got)
	}
	last := s.joinOn(s.queue(&QueueOptions{InstanceID: "pod-0", Leave: true}), time.Minute)
	s.add("a/4")
	last.Record(driver.Ack, last.Take(1)...)
	last.Leave()
	if got := s.instances(); len(got) > 0 {
		t.Errorf("after a scale-down the group has %v", got)
	}
	if id, err := InstanceID("shop", "worker-12"); id != "shop-12" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
	for _, pod := range []string{"", "worker", "12", "-12", "worker-", "worker12"} {
		if id, err := InstanceID("shop", pod); err == nil {
			t.Errorf("%q: %q", pod, id)
		}
	}
}

// instances are the static members of the group.
func (s *scene) instances() (ids []string) {
	s.Helper()
	r := kmsg.NewPtrDescribeGroupsRequest()
	r.Groups = []string{"interlock." + s.topic}
	answer, err := r.RequestWith(s.Context(), client(s.T, kgo.SeedBrokers(s.addr)))
	testbed.OK(s, err)
	for _, m := range answer.Groups[0].Members {
		if m.InstanceID != nil {
			ids = append(ids, *m.InstanceID)
		}
	}
	return ids
}

// TestAnswerLost: the answer to a commit is lost. The outcome is unknown, and after a crash
// nothing is handled again, because the broker has it.
func TestAnswerLost(t *testing.T) {
	s := newScene(t, 1)
	s.add("a/1", "a/2")
	path := testbed.NewProxy(t, s.addr)
	c := s.join(&QueueOptions{Client: []kgo.Opt{through(path.Addr())}})
	m := c.Take(2)
	path.DropReplies()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	for _, err := range c.Settle(ctx, drivertest.Settlements(driver.Ack, m...)) {
		if interlock.Kind(err) != interlock.Uncertain || err == nil {
			t.Errorf("settled: %v", err)
		}
	}
	c.Crash()
	c = s.join(nil)
	s.add("a/3")
	if got := c.Take(1); got[0].ID != "a/3" {
		t.Errorf("received %s again", got[0].ID)
	}
}

// TestCutOff: a consumer that reaches no broker for the session timeout ends its claims by
// itself, and goes on when it reaches one.
func TestCutOff(t *testing.T) {
	s := newScene(t, 1)
	s.add("a/1", "a/2")
	path := testbed.NewProxy(t, s.addr)
	c := s.join(&QueueOptions{Client: []kgo.Opt{through(path.Addr())}})
	was := c.Take(2)
	path.Cut()
	select {
	case <-was[0].Claim.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the claim goes on")
	}
	if cause := context.Cause(was[0].Claim.Context()); !errors.Is(cause, interlock.ErrExpired) || was[0].Claim.Valid() {
		t.Errorf("it ended by %v", cause)
	}
	if errs := c.Settle(t.Context(), drivertest.Settlements(driver.Ack, was[0])); !errors.Is(errs[0], interlock.ErrLost) {
		t.Errorf("settled under an expired claim: %v", errs[0])
	}
	path.Heal()
	var is []*driver.Received
	testbed.Eventually(t, "the messages come again", time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		some, _ := c.Receive(ctx, driver.QueueLimit{Messages: 2, Bytes: 1 << 20})
		is = append(is, some...)
		return len(is) == 2
	})
	if is[0].ID != "a/1" || is[0].Attempt <= was[0].Attempt || is[0].Claim.Token() <= was[0].Claim.Token() {
		t.Errorf("%s, attempt %d, token %v after %v", is[0].ID, is[0].Attempt, is[0].Claim.Token(), was[0].Claim.Token())
	}
	c.Record(driver.Ack, is...)
}

// TestOutOfRange: the log has lost what the group has not handled. That is an error once, and
// the consumer goes on with what there is.
func TestOutOfRange(t *testing.T) {
	s := newScene(t, 1)
	s.add("a/1", "a/2", "a/3", "a/4")
	c := s.join(nil)
	c.Record(driver.Ack, c.Take(1)...)
	c.Leave()
	s.deleteRecords(3)
	c = s.join(nil)
	c.Fails(func(err error) bool {
		return interlock.Kind(err) == interlock.Definite && strings.Contains(err.Error(), "offset 1")
	})
	if got := c.Take(1); got[0].ID != "a/4" {
		t.Errorf("received %s", got[0].ID)
	} else {
		c.Record(driver.Ack, got...)
	}
}

// TestLogCut: while there is no consumer, the log loses what was handled, and grows again beyond the offset of the
// group. The records in its place are handled.
func TestLogCut(t *testing.T) {
	t.Parallel()
	server := testbed.Kafka(t)
	s := sceneOn(t, server.Addr(), 1)
	s.add("a/1", "a/2", "a/3")
	c := s.join(nil)
	c.Record(driver.Ack, c.Take(3)...)
	c.Leave()
	answer, err := kmsg.NewPtrDescribeLogDirsRequest().RequestWith(t.Context(), client(t, seeds(s.addr)))
	testbed.OK(t, err)
	server.Kill()
	testbed.OK(t, os.RemoveAll(filepath.Join(answer.Dirs[0].Dir, s.topic+"-0")))
	server.Restart()
	s.add("b/1", "b/2", "b/3", "b/4")
	c = s.join(nil)
	c.Fails(func(err error) bool {
		return interlock.Kind(err) == interlock.Definite && strings.Contains(err.Error(), "offset 0 to 3")
	})
	all := c.Take(4)
	if all[0].ID != "b/1" {
		t.Errorf("received %s first", all[0].ID)
	}
	c.Record(driver.Ack, all...)
}

// unchecked is a Queue whose Join asks no broker.
type unchecked struct{ *Queue }

func (u unchecked) Join(_ context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	c, err := u.start(name, o)
	u.consumers.Add(c.Consumer)
	return c, err
}

// TestUnknownBeginning: a new group does not know where the log begins, because nobody answers. It goes on with the
// first record there is, which is no loss.
func TestUnknownBeginning(t *testing.T) {
	s := newScene(t, 1)
	s.add("a/1", "a/2", "a/3", "a/4")
	s.deleteRecords(3)
	q, path := s.queue(nil), testbed.NewProxy(t, s.addr)
	q.client.Close()
	q.client = client(t, seeds(s.addr), through(path.Addr()), kgo.RequestRetries(0))
	path.Cut()
	c := s.joinOn(unchecked{q}, lease)
	c.Fails(func(err error) bool { return strings.Contains(err.Error(), "list offsets") })
	path.Heal()
	if got := c.Take(1); got[0].ID != "a/4" { // a Definite error ends the test
		t.Errorf("received %s", got[0].ID)
	}
}

// deleteRecords deletes those of partition 0 below an offset; -1 means all.
func (s *scene) deleteRecords(below int64) {
	s.Helper()
	r := kmsg.NewPtrDeleteRecordsRequest()
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = s.topic
	partition := kmsg.NewDeleteRecordsRequestTopicPartition()
	partition.Offset = below
	topic.Partitions = append(topic.Partitions, partition)
	r.Topics = append(r.Topics, topic)
	r.TimeoutMillis = 10_000
	_, err := r.RequestWith(s.Context(), client(s.T, seeds(s.addr)))
	testbed.OK(s, err)
}

// TestFullPartition: a parked key stops its partition when it fills the window, and nothing else
// is lost or forgotten.
func TestFullPartition(t *testing.T) {
	s := newScene(t, 1)
	q := s.queue(&QueueOptions{Window: 10})
	var all []string
	for i := range 4 * maxReady {
		all = append(all, fmt.Sprintf("a/%05d", i))
	}
	s.add(append(all, "b/1")...)
	c := s.joinOn(q, lease)
	c.Record(driver.Park, c.Take(1)...)
	c.Nothing(300 * time.Millisecond)
	backlogs, err := q.Backlogs(t.Context(), s.topic)
	if err != nil || len(backlogs) != 1 || backlogs[0].Lag != int64(len(all)+1) || !slices.Equal(backlogs[0].Parked, []string{"a"}) || backlogs[0].Age <= 0 {
		t.Errorf("backlog %+v, %v", backlogs, err)
	}
	inner := c.QueueConsumer.(*consumer)
	inner.Mu.Lock()
	if read := inner.Parts[0].Offsets.Unread(); read > 10+3*maxReady {
		t.Errorf("the partition was read to %d", read)
	}
	inner.Mu.Unlock()
	testbed.OK(t, q.Resume(s.topic, "a"))
	var got []string
	for len(got) < len(all)+1 {
		some := c.Take(min(500, len(all)+1-len(got)))
		c.Record(driver.Ack, some...)
		got = append(got, drivertest.ReceivedIDs(some)...)
	}
	if !slices.Equal(got, append(all, "b/1")) {
		t.Errorf("received %v", got)
	}
	if err := q.Resume(s.topic, "a"); interlock.Kind(err) != interlock.Definite || err == nil {
		t.Errorf("resumed a key that is not parked: %v", err)
	}
}

// TestBytes: a fetch is no larger than QueueOptions.Bytes, so that less than twice as much is read ahead.
func TestBytes(t *testing.T) {
	const size, bytes = 50_000, 100_000
	s := newScene(t, 1)
	producer := client(t, kgo.SeedBrokers(s.addr), kgo.DefaultProduceTopic(s.topic))
	for range 12 { // a batch each, which the client compresses
		value := make([]byte, size)
		_, _ = rand.Read(value)
		testbed.OK(t, producer.ProduceSync(t.Context(), &kgo.Record{Value: value}).FirstErr())
	}
	c := s.join(&QueueOptions{Bytes: bytes})
	inner := c.QueueConsumer.(*consumer)
	testbed.Eventually(t, "records are read ahead", time.Minute, func() bool {
		inner.Mu.Lock()
		defer inner.Mu.Unlock()
		a := inner.Parts[0]
		if a == nil || a.Offsets == nil {
			return false
		}
		_, held := a.Offsets.Ahead()
		if held += size * len(a.read); held >= 2*bytes {
			t.Fatalf("%d bytes are read ahead", held)
		}
		return held >= bytes
	})
	for range 6 {
		c.Record(driver.Ack, c.Take(2)...)
	}
}

// TestCloseWithoutCoordinator: Close does not wait for a broker that does not answer.
func TestCloseWithoutCoordinator(t *testing.T) {
	t.Parallel()
	server := testbed.Kafka(t)
	s := sceneOn(t, server.Addr(), 1)
	s.add("a/1", "a/2")
	c := s.join(nil)
	c.Record(driver.Ack, c.Take(1)...)
	server.Pause()
	defer server.Resume()
	begun := time.Now()
	testbed.OK(t, c.Close(t.Context()))
	if took := time.Since(begun); took > 2*leaveLimit {
		t.Errorf("Close took %v", took)
	}
}

// TestMorePartitions follows the procedure: producers stop, the lag is 0, partitions are added,
// producers go on. The order of keys holds.
func TestMorePartitions(t *testing.T) {
	s := newScene(t, 1)
	a := drivertest.NewQueueAudit()
	s.start(s.queue(&QueueOptions{Client: []kgo.Opt{kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(200 * time.Millisecond)}}), a.Handle)
	before, after := drivertest.QueueIDs(10, 0, 10), drivertest.QueueIDs(10, 10, 10)
	s.add(before...)
	a.Wait(t, len(before))
	r := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = s.topic, 4
	r.Topics = append(r.Topics, topic)
	answer, err := r.RequestWith(t.Context(), client(t, kgo.SeedBrokers(s.addr)))
	if err == nil {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	testbed.OK(t, err)
	s.add(after...)
	a.Wait(t, len(before)+len(after))
	a.Check(t, append(before, after...), 1)
}

// TestTransactions: records of other programs have no key and no id, and what an aborted transaction
// wrote is not delivered. Offsets that are not records keep nothing back: the lag becomes 0.
func TestTransactions(t *testing.T) {
	s := newScene(t, 1)
	producer := client(t, kgo.SeedBrokers(s.addr), kgo.TransactionalID(s.topic), kgo.DefaultProduceTopic(s.topic))
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		err := producer.BeginTransaction()
		if err == nil {
			err = producer.ProduceSync(t.Context(), &kgo.Record{Value: fmt.Append(nil, end)}, &kgo.Record{Value: fmt.Append(nil, end)}).FirstErr()
		}
		if err == nil {
			err = producer.EndTransaction(t.Context(), end)
		}
		testbed.OK(t, err)
	}
	q := s.queue(nil)
	c := s.joinOn(q, lease)
	got := c.Take(4)
	for i, offset := range []int{0, 1, 6, 7} { // each transaction ends with a marker
		if want := fmt.Sprintf("%s/0/%d", s.topic, offset); got[i].ID != want || got[i].Key != "" || string(got[i].Payload) != fmt.Sprint(kgo.TryCommit) {
			t.Errorf("%+v, want %s", got[i], want)
		}
	}
	c.Record(driver.Ack, got[3], got[0], got[2], got[1])
	testbed.Eventually(t, "nothing is left", time.Minute, func() bool {
		all, err := q.Backlogs(t.Context(), s.topic)
		return err == nil && len(all) == 1 && all[0].Lag == 0
	})
}

// TestDeadLetterTopicIsMissing: the message is not lost, and its offset not committed.
func TestDeadLetterTopicIsMissing(t *testing.T) {
	s := newScene(t, 1)
	s.add("a/1")
	c := s.join(&QueueOptions{DeadLetters: "missing.dlq"})
	m := c.Take(1)
	errs := c.Settle(t.Context(), drivertest.Settlements(driver.Dead, m...))
	if kind := interlock.Kind(errs[0]); errs[0] == nil || kind == interlock.Definite || !strings.Contains(errs[0].Error(), "missing.dlq") {
		t.Errorf("settled: %v", errs[0])
	}
	c.Leave()
	c = s.join(nil)
	if got := c.Take(1); got[0].ID != "a/1" {
		t.Errorf("received %v", got)
	}
}

// TestLargeDeadLetters: a message is above the client's own limit, which is that of a topic by default, or several are together.
func TestLargeDeadLetters(t *testing.T) {
	s := newScene(t, 1)
	for name, c := range map[string]struct{ count, size, limit int }{"one": {1, 2_000_000, 3_000_000}, "several": {3, 600_000, DefaultMaxBytes}} {
		limit := fmt.Sprint(c.limit)
		configure := func(topic *kmsg.CreateTopicsRequestTopic) {
			entry := kmsg.NewCreateTopicsRequestTopicConfig()
			entry.Name, entry.Value = "max.message.bytes", &limit
			topic.Configs = append(topic.Configs, entry)
		}
		of := &scene{t, s.addr, newTopicOf(t, s.addr, s.topic+"."+name, 1, configure)}
		letters := newTopicOf(t, s.addr, of.topic+".dlq", 1, configure)
		producer := client(t, seeds(s.addr), kgo.ProducerBatchMaxBytes(int32(c.limit)))
		for range c.count {
			value := make([]byte, c.size)
			_, _ = rand.Read(value)
			testbed.OK(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: of.topic, Key: []byte("a"), Value: value}).FirstErr())
		}
		q := of.join(nil)
		m := q.Take(c.count)
		q.Record(driver.Dead, m...)
		got := read(t.Context(), s.addr, letters, 1)
		if len(got) != c.count || got[0].ID != m[0].ID || len(got[0].Payload) != c.size {
			t.Errorf("%s: %d dead letters", name, len(got))
		}
	}
}

// TestWrongCredentials are an error of Join.
func TestWrongCredentials(t *testing.T) {
	s := newScene(t, 1)
	q := s.queue(&QueueOptions{Client: []kgo.Opt{kgo.SASL(plain.Auth{User: "a", Pass: "b"}.AsMechanism())}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := q.Join(ctx, s.topic, driver.QueueOptions{}); interlock.Kind(err) != interlock.Definite || err == nil {
		t.Errorf("joined: %v", err)
	}
}
