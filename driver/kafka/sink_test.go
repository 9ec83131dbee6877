package kafka

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("KAFKA_TEST_CHILD"); addr != "" {
		log.Fatal(child(addr, os.Getenv("KAFKA_TEST_TOPIC"), os.Getenv("KAFKA_TEST_GUARD")))
	}
	testbed.Main(m)
}

// TestSinkSuite has one partition for each test, so that all its messages are in one order.
func TestSinkSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunSink(t, drivertest.SinkHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.SinkBackend {
			server := testbed.Shared(t, testbed.Kafka)
			if exclusive {
				server = testbed.Kafka(t)
			}
			topic := newTopic(t, server.Addr(), 1)
			return paths.At(server, func(t *testing.T, by string) (drivertest.KeptSink, error) {
				s, err := OpenSink("kafka://"+server.Addr()+"/"+topic, &SinkOptions{Client: []kgo.Opt{through(by)}})
				if err != nil {
					return nil, err
				}
				t.Cleanup(s.Close)
				return &keptSink{s, server.Addr(), topic}, nil
			})
		},
	})
}

// newTopic creates a topic for one run of a test.
func newTopic(t *testing.T, addr string, partitions int32) string {
	t.Helper()
	return newTopicOf(t, addr, strings.ReplaceAll(t.Name(), "/", ".")+"."+rand.Text()[:8], partitions)
}

func newTopicOf(t *testing.T, addr, name string, partitions int32, configure ...func(*kmsg.CreateTopicsRequestTopic)) string {
	t.Helper()
	r := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, -1
	for _, set := range configure {
		set(&topic)
	}
	r.Topics = append(r.Topics, topic)
	c := client(t, seeds(addr))
	answer, err := r.RequestWith(t.Context(), c)
	if err == nil {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("create topic %s: %v", name, err)
	}
	testbed.Eventually(t, "every broker knows topic "+name, time.Minute, func() bool {
		brokers := c.DiscoveredBrokers()
		return len(brokers) > 0 && !slices.ContainsFunc(brokers, func(b *kgo.Broker) bool {
			r := kmsg.NewPtrMetadataRequest()
			asked := kmsg.NewMetadataRequestTopic()
			asked.Topic = &name
			r.Topics = append(r.Topics, asked)
			answer, err := r.RequestWith(t.Context(), b)
			return err != nil || answer.Topics[0].ErrorCode != 0
		})
	})
	return name
}

func client(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(options, kgo.MetadataMinAge(100*time.Millisecond))...) // a new topic is known after the second question
	testbed.OK(t, err)
	t.Cleanup(c.Close)
	return c
}

// through leads all connections of a client to one address.
func through(addr string) kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	})
}

// keptSink reads its topic as a consumer does.
type keptSink struct {
	*Sink
	addr, stored string
}

func (s *keptSink) Kept(ctx context.Context, topic string) (all []driver.Message, err error) {
	for _, m := range read(ctx, s.addr, s.stored, 1) {
		if m.Topic == topic {
			all = append(all, m)
		}
	}
	return all, ctx.Err()
}

// read returns the messages of a topic, by partition.
func read(ctx context.Context, addr, topic string, partitions int32) (all []driver.Message) {
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[p] = kgo.NewOffset().AtStart()
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	for left := ends(ctx, c, topic, partitions); left > 0 && ctx.Err() == nil; {
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			left--
			m := driver.Message{Key: string(r.Key), Payload: r.Value}
			for _, h := range r.Headers {
				switch h.Key {
				case HeaderID:
					m.ID = string(h.Value)
				case HeaderTopic:
					m.Topic = string(h.Value)
				default:
					if m.Headers == nil {
						m.Headers = map[string]string{}
					}
					m.Headers[h.Key] = string(h.Value)
				}
			}
			all = append(all, m)
		})
	}
	return all
}

// ends is how many records a topic has from which nothing was deleted.
func ends(ctx context.Context, c *kgo.Client, topic string, partitions int32) (sum int64) {
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID = -1
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic = topic
	for p := range partitions {
		at := kmsg.NewListOffsetsRequestTopicPartition()
		at.Partition, at.Timestamp = p, -1
		of.Partitions = append(of.Partitions, at)
	}
	r.Topics = append(r.Topics, of)
	for _, shard := range c.RequestSharded(ctx, r) {
		if answer, ok := shard.Resp.(*kmsg.ListOffsetsResponse); ok {
			for _, p := range answer.Topics[0].Partitions {
				sum += max(0, p.Offset)
			}
		}
	}
	return sum
}

// TestSinkOrderOfKeys: messages of a key stay in order, and none is lost, while the broker is
// killed under them and comes back. What has no answer is sent again, as a relay does; repetitions
// come in order, too.
func TestSinkOrderOfKeys(t *testing.T) {
	t.Parallel()
	server := testbed.Kafka(t)
	topic := newTopic(t, server.Addr(), 4)
	sink, err := OpenSink("kafka://"+server.Addr(), nil)
	testbed.OK(t, err)
	defer sink.Close()
	drivertest.SinkOrder{Sink: sink, Topic: topic, Keys: 5, Rounds: 40, Each: 10, Repeats: true, Fail: func(reach func(int)) {
		reach(11)
		server.Kill()
		server.Restart()
	}, Read: func(ctx context.Context) ([]driver.Message, error) { return read(ctx, server.Addr(), topic, 4), nil }}.Check(t)
}

func TestSinkURLs(t *testing.T) {
	for _, url := range []string{"", "redis://h:1", "kafka://", "kafka://h", "kafka://:9092", "kafka://h:1,", "kafka://u:p@h:1", "kafka://h:1/a b", "kafka://h:1/a/b", "kafka://h:1/.", "kafka://h:1?x=y"} {
		if _, err := OpenSink(url, nil); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := OpenSink("kafka://h:1", &SinkOptions{MaxBytes: -1}); interlock.Kind(err) != interlock.Bug {
		t.Errorf("negative size: %v", err)
	}
	s, err := OpenSink("kafka://h:1", &SinkOptions{MaxBytes: 1 << 30})
	testbed.OK(t, err)
	s.Close()
}

func TestSinkRefuses(t *testing.T) {
	s, err := OpenSink("kafka://127.0.0.1:1", &SinkOptions{MaxBytes: 2000})
	testbed.OK(t, err)
	defer s.Close()
	for name, m := range map[string]driver.Message{
		"large":    {ID: "1", Topic: "t", Payload: make([]byte, 2000)},
		"header":   {ID: "1", Topic: "t", Headers: map[string]string{HeaderID: "x"}},
		"topic":    {ID: "1", Topic: "a b"},
		"no id":    {Topic: "t"},
		"no topic": {ID: "1"},
	} {
		err := s.Publish(t.Context(), []driver.Message{m})[0]
		if kind := interlock.Kind(err); err == nil || kind != interlock.Definite && kind != interlock.Bug {
			t.Errorf("%s: %v (%v)", name, err, kind)
		}
	}
}

// TestUnknownOutcome: only what a broker said about a record itself is final.
func TestUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want interlock.ErrorKind
	}{
		{kerr.MessageTooLarge, interlock.Definite}, {fmt.Errorf("x: %w", kerr.InvalidTopicException), interlock.Definite},
		{kerr.TopicAuthorizationFailed, interlock.Retryable}, {kerr.UnknownTopicOrPartition, interlock.Retryable},
		{kerr.RequestTimedOut, interlock.Uncertain}, {kerr.UnknownServerError, interlock.Uncertain}, {kgo.ErrClientClosed, interlock.Uncertain}, {context.Canceled, interlock.Uncertain},
		{fmt.Errorf("unable to dial: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), interlock.Uncertain}, // an earlier attempt may have been sent
	} {
		if got := classify(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
