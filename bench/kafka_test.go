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

// logKeys is the number of keys of a log.
const logKeys = 1000

// kafkaCases compares a consumer with a loop that polls and commits.
func kafkaCases(tb testing.TB) []benchmark {
	l := &logs{tb: tb, server: lazily(tb, testbed.Kafka)}
	return []benchmark{{
		Case: compare.Case{Name: "queue/kafka/empty", Rounds: 5, Window: time.Second,
			Note:  "one broker; 1,000,000 messages of 1,000 keys in four partitions, 100 bytes each; from the first message until all are handled; handlers that do nothing",
			Goals: []compare.Goal{faster("poll loop", 0.83), {Metric: compare.CPU, Against: []string{"poll loop"}}}},
		smoke: true,
		open: func(testing.TB) []compare.Side {
			return []compare.Side{{Name: "interlock", Run: l.run(l.queue)}, {Name: "poll loop", Run: l.run(l.poll)}}
		},
	}}
}

// logs are topics, by the number of their messages. Each run reads one with its own group.
type logs struct {
	tb     testing.TB
	server func() *testbed.Server
	topics sync.Map
}

// topic creates n messages. Each contains its key and its number among those of the key.
func (l *logs) topic(n int) string {
	name := fmt.Sprint("bench-", n)
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
		c.Produce(l.tb.Context(), &kgo.Record{Topic: name, Key: fmt.Append(nil, "key/", i%logKeys), Value: value[:cap(value)]}, func(_ *kgo.Record, err error) {
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
	n            int64
	began        sync.Once
	first        time.Time
	handled      atomic.Int64
	done         chan struct{}
	next         [logKeys]atomic.Int64 // number of the next message of a key
	wrong        atomic.Int64
}

func (r *reading) handle(value []byte) {
	r.began.Do(func() { r.first = time.Now() })
	i := int64(binary.BigEndian.Uint64(value))
	if !r.next[i%logKeys].CompareAndSwap(i/logKeys, i/logKeys+1) {
		r.wrong.Add(1)
	}
	if r.handled.Add(1) == r.n {
		close(r.done)
	}
}

func (l *logs) run(consume func(ctx context.Context, r *reading) error) func(context.Context, time.Duration) (compare.Sample, error) {
	return func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		n := int(1_000_000*window.Seconds()) / logKeys * logKeys
		r := &reading{topic: l.topic(n), group: fmt.Sprint("bench-", fresh.Add(1)), n: int64(n), done: make(chan struct{})}
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

// poll handles records and commits after each poll.
func (l *logs) poll(ctx context.Context, r *reading) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(l.server().Addr()), kgo.ConsumerGroup(r.group), kgo.ConsumeTopics(r.topic), kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer c.Close()
	for r.handled.Load() < r.n {
		fetches := c.PollFetches(ctx)
		fetches.EachRecord(func(record *kgo.Record) { r.handle(record.Value) })
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
	}, &queue.Options{InFlight: 1 << 16})
	if err != nil {
		return err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	return errors.Join(context.Cause(ctx), c.Close(context.WithoutCancel(ctx)))
}
