package nats

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// benchStream is a stream with messages of many keys in the partitions of a queue "q".
type benchStream struct {
	addr, prefix string
	js           jetstream.JetStream
}

func produced(b *testing.B, keys, n int) *benchStream {
	s := &benchStream{addr: testbed.NATS(b).Addr(), prefix: "b" + strings.ReplaceAll(b.Name(), "/", "-")}
	client, err := nats.Connect(s.addr)
	testbed.OK(b, err)
	b.Cleanup(client.Close)
	if s.js, err = jetstream.New(client); err != nil {
		b.Fatal(err)
	}
	_, err = s.js.CreateStream(b.Context(), jetstream.StreamConfig{Name: s.prefix, Subjects: []string{s.prefix + ".q.*"}})
	testbed.OK(b, err)
	for i := range n {
		key := fmt.Sprint(i % keys)
		_, err := s.js.PublishMsgAsync(&nats.Msg{Subject: subjectOf(s.prefix+".q", partition(key, partitions), partitions), Data: make([]byte, 100),
			Header: nats.Header{HeaderKey: {url.PathEscape(key)}}})
		testbed.OK(b, err)
	}
	<-s.js.PublishAsyncComplete()
	return s
}

// one consumes with an explicit-ack consumer that keeps the order by one message in flight for each
// partition.
func (s *benchStream) one(b *testing.B, name string, n int, handle func()) {
	var handled atomic.Int64
	done := make(chan struct{})
	for p := range partitions {
		c, err := s.js.CreateConsumer(b.Context(), s.prefix, jetstream.ConsumerConfig{Durable: fmt.Sprint(name, p), MaxAckPending: 1,
			FilterSubject: subjectOf(s.prefix+".q", p, partitions)})
		testbed.OK(b, err)
		consuming, err := c.Consume(func(m jetstream.Msg) {
			handle()
			if err := m.Ack(); err != nil {
				b.Error(err)
			}
			if handled.Add(1) == int64(n) {
				close(done)
			}
		})
		testbed.OK(b, err)
		defer consuming.Stop()
	}
	<-done
}

func (s *benchStream) queue(b *testing.B, group string, n int, handle func()) {
	q, err := OpenQueue("nats://"+s.addr+"/"+s.prefix, &QueueOptions{Partitions: partitions, Group: group})
	testbed.OK(b, err)
	defer q.Close()
	var handled atomic.Int64
	done := make(chan struct{})
	c, err := queue.New(b.Context(), q, "q", func(context.Context, queue.Received) error {
		handle()
		if handled.Add(1) == int64(n) {
			close(done)
		}
		return nil
	}, &queue.Options{Concurrency: 100, Hooks: &observe.Queue{Log: observe.Silent}})
	testbed.OK(b, err)
	<-done
	testbed.OK(b, c.Close(b.Context()))
}

// BenchmarkHotKeys compares handlers of 5 ms and 100 keys with a consumer with MaxAckPending 1 for
// each partition.
func BenchmarkHotKeys(b *testing.B) {
	const n = 4_000
	s := produced(b, 100, n)
	benchBoth(b, s, n, func() { time.Sleep(5 * time.Millisecond) })
}

// BenchmarkEmptyHandlers measures the cost of claims, lanes and outcomes.
func BenchmarkEmptyHandlers(b *testing.B) {
	const n = 40_000
	s := produced(b, 1000, n)
	benchBoth(b, s, n, func() {})
}

func benchBoth(b *testing.B, s *benchStream, n int, handle func()) {
	runs := 0
	for name, consume := range map[string]func(*testing.B, string, int, func()){"one-at-a-time-per-partition": s.one, "queue": s.queue} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				runs++
				consume(b, fmt.Sprint("group", runs), n, handle)
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
