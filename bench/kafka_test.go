package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/kafka"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// mostKeys is the largest number of keys of a log.
const mostKeys = 1000

// kafkaCases compares a consumer with a loop that polls and commits.
func kafkaCases(tb testing.TB) []benchmark {
	server := lazily(tb, testbed.Kafka)
	empty := &logs{tb: tb, server: server, keys: mostKeys, messages: 1_000_000}
	hot := &logs{tb: tb, server: server, keys: 100, messages: 4000, work: 5 * time.Millisecond, handlers: 100}
	sides := func(l *logs) func(testing.TB) []compare.Side {
		return func(testing.TB) []compare.Side {
			return []compare.Side{{Name: "interlock", Run: l.run(l.queue)}, {Name: "poll loop", Run: l.run(l.poll)}}
		}
	}
	return []benchmark{{
		Case: compare.Case{Name: "queue/kafka/empty", Rounds: 5, Window: time.Second,
			Note:  "one broker; 1,000,000 messages of 1,000 keys in four partitions, 100 bytes each; from the first message until all are handled; handlers that do nothing",
			Goals: []compare.Goal{faster("poll loop", 0.83), {Metric: compare.CPU, Against: []string{"poll loop"}}}},
		smoke: true,
		open:  sides(empty),
	}, {
		Case: compare.Case{Name: "queue/kafka/hot", Rounds: 1, Window: time.Second,
			Note:  "one broker; 4,000 messages of 100 keys in four partitions; handlers that take 5 ms; the loop handles the records of a partition one by one",
			Goals: []compare.Goal{faster("poll loop", 10)}},
		open: sides(hot),
	}}
}

// logs are topics, by the number of their messages. Each run reads one with its own group.
type logs struct {
	tb       testing.TB
	server   func() *testbed.Server
	keys     int
	messages float64       // in a window of a second
	work     time.Duration // of a handler
	handlers int           // 0 is the default
	topics   sync.Map
}

// topic creates n messages. Each contains its key and its number among those of the key.
func (l *logs) topic(n int) string {
	name := fmt.Sprint("bench-", l.keys, "-", n)
	if _, exists := l.topics.LoadOrStore(n, true); exists {
		return name
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(l.server().Addr()), kgo.AllowAutoTopicCreation())
	ok(l.tb, err)
	defer c.Close()
	random := rand.NewChaCha8([32]byte{})
	for i := range n {
		value := binary.BigEndian.AppendUint64(make([]byte, 0, 100), uint64(i))
		_, _ = random.Read(value[8:cap(value)]) // incompressible
		c.Produce(l.tb.Context(), &kgo.Record{Topic: name, Key: fmt.Append(nil, "key/", i%l.keys), Value: value[:cap(value)]}, func(_ *kgo.Record, err error) {
			if err != nil {
				l.tb.Error(err)
			}
		})
	}
	ok(l.tb, c.Flush(l.tb.Context()))
	return name
}

// reading is one run. It checks that the messages of each key arrive in order, and once.
type reading struct {
	topic, group string
	n, keys      int64
	work         time.Duration
	began        sync.Once
	first        time.Time
	handled      atomic.Int64
	done         chan struct{}
	next         [mostKeys]atomic.Int64 // number of the next message of a key
	wrong        atomic.Int64
}

func (r *reading) handle(value []byte) {
	r.began.Do(func() { r.first = time.Now() })
	i := int64(binary.BigEndian.Uint64(value))
	if !r.next[i%r.keys].CompareAndSwap(i/r.keys, i/r.keys+1) {
		r.wrong.Add(1)
	}
	if r.work > 0 {
		time.Sleep(r.work)
	}
	if r.handled.Add(1) == r.n {
		close(r.done)
	}
}

func (l *logs) run(consume func(ctx context.Context, r *reading) error) func(context.Context, time.Duration) (compare.Sample, error) {
	return func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		n := int(l.messages*window.Seconds()) / l.keys * l.keys
		r := &reading{topic: l.topic(n), group: fmt.Sprint("bench-", fresh.Add(1)), n: int64(n), keys: int64(l.keys), work: l.work, done: make(chan struct{})}
		meter, measured := compare.Start(), make(chan compare.Sample, 1)
		go func() {
			<-r.done
			s := meter.Sample(n)
			s.Elapsed = time.Since(r.first)
			measured <- s
		}()
		if err := consume(ctx, r); err != nil {
			return compare.Sample{}, err
		}
		s := <-measured
		if wrong := r.wrong.Load(); wrong > 0 {
			s.Violations = append(s.Violations, fmt.Sprintf("%d messages came out of turn, or twice", wrong))
		}
		return s, nil
	}
}

// poll handles records, those of a partition one by one, and commits after each poll. Partitions have
// goroutines of their own if handlers take time.
func (l *logs) poll(ctx context.Context, r *reading) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(l.server().Addr()), kgo.ConsumerGroup(r.group), kgo.ConsumeTopics(r.topic), kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer c.Close()
	for r.handled.Load() < r.n {
		fetches := c.PollFetches(ctx)
		var partitions sync.WaitGroup
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			handle := func() { p.EachRecord(func(record *kgo.Record) { r.handle(record.Value) }) }
			if l.work > 0 {
				partitions.Go(handle)
			} else {
				handle()
			}
		})
		partitions.Wait()
		if err := errors.Join(fetches.Err(), c.CommitUncommittedOffsets(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// queue handles them with a consumer.
func (l *logs) queue(ctx context.Context, r *reading) error {
	q, err := kafka.OpenQueue("kafka://"+l.server().Addr(), &kafka.QueueOptions{Group: r.group})
	if err != nil {
		return err
	}
	defer q.Close()
	c, err := queue.New(ctx, q, r.topic, func(_ context.Context, m queue.Received) error {
		r.handle(m.Payload)
		return nil
	}, &queue.Options{InFlight: 1 << 16, Concurrency: l.handlers})
	if err != nil {
		return err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	return errors.Join(context.Cause(ctx), c.Close(context.WithoutCancel(ctx)))
}
