package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// requests counts what a client sends.
type requests struct{ commits atomic.Int32 }

func (r *requests) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if kmsg.Key(key) == kmsg.OffsetCommit {
		r.commits.Add(1)
	}
}

// TestCommitCost: one request commits what was settled together, in all partitions, and the
// tokens of partitions that were assigned together.
func TestCommitCost(t *testing.T) {
	s := newScene(t, 4)
	s.add(drivertest.QueueIDs(40, 0, 10)...)
	count := &requests{}
	c := s.join(&QueueOptions{Client: []kgo.Opt{kgo.WithHooks(count)}})
	all := c.Take(400)
	if n := count.commits.Load(); n != 1 {
		t.Errorf("%d commits of tokens", n)
	}
	c.Record(driver.Ack, all...)
	if n := count.commits.Load(); n != 2 {
		t.Errorf("%d commits, of tokens and one settlement", n)
	}
	c.Leave()
	if n := count.commits.Load(); n != 3 {
		t.Errorf("%d commits, with that of Close", n)
	}
}

// produced is a topic with messages.
func produced(b *testing.B, keys, n int) *benchTopic {
	b.Helper()
	server := testbed.Shared(b, testbed.Kafka)
	s := &benchTopic{server.Addr(), fmt.Sprintf("bench-%d", time.Now().UnixNano())}
	c, err := kgo.NewClient(kgo.SeedBrokers(s.addr), kgo.AllowAutoTopicCreation())
	testbed.OK(b, err)
	defer c.Close()
	for i := range n {
		c.Produce(b.Context(), &kgo.Record{Topic: s.topic, Key: fmt.Append(nil, i%keys), Value: make([]byte, 100)}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	testbed.OK(b, c.Flush(b.Context()))
	return s
}

type benchTopic struct{ addr, topic string }

// bare consumes with a poll loop that commits after each poll. handle gets the records of a
// partition, in order.
func (s *benchTopic) bare(b *testing.B, n int, handle func([]*kgo.Record)) {
	c, err := kgo.NewClient(kgo.SeedBrokers(s.addr), kgo.ConsumerGroup("bare-"+s.topic), kgo.ConsumeTopics(s.topic), kgo.DisableAutoCommit())
	testbed.OK(b, err)
	defer c.Close()
	for n > 0 {
		fetches := c.PollFetches(b.Context())
		var partitions sync.WaitGroup
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			n -= len(p.Records)
			partitions.Go(func() { handle(p.Records) })
		})
		partitions.Wait()
		testbed.OK(b, c.CommitUncommittedOffsets(b.Context()))
	}
}

func (s *benchTopic) queue(b *testing.B, n int, handle queue.Handler, o *queue.Options) {
	q, err := OpenQueue("kafka://"+s.addr, nil)
	testbed.OK(b, err)
	defer q.Close()
	done := make(chan struct{})
	var handled atomic.Int64
	c, err := queue.New(b.Context(), q, s.topic, func(ctx context.Context, m queue.Received) error {
		err := handle(ctx, m)
		if handled.Add(1) == int64(n) {
			close(done)
		}
		return err
	}, o)
	testbed.OK(b, err)
	<-done
	testbed.OK(b, c.Close(b.Context()))
}

// BenchmarkHotKeys has handlers of 5 ms and 100 keys.
func BenchmarkHotKeys(b *testing.B) {
	const n = 4_000
	s := produced(b, 100, n)
	report := func(b *testing.B) { b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "messages/s") }
	b.Run("one-at-a-time-per-partition", func(b *testing.B) {
		for b.Loop() {
			s.bare(b, n, func(records []*kgo.Record) {
				for range records {
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		report(b)
	})
	b.Run("queue", func(b *testing.B) {
		for b.Loop() {
			s.queue(b, n, func(context.Context, queue.Received) error { time.Sleep(5 * time.Millisecond); return nil }, &queue.Options{Concurrency: 100})
		}
		report(b)
	})
}
