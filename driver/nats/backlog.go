package nats

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// A Backlog is the remaining work of a partition that a consumer of this process owns.
type Backlog = lanes.Backlog

// Backlogs reads the backlog of each partition of a queue that consumers of this process
// own, sorted by partition.
func (q *Queue) Backlogs(ctx context.Context, name string) ([]Backlog, error) {
	all := q.consumers.Backlogs(name)
	stream, err := q.stream(ctx, q.prefix+name)
	for i, b := range all {
		if err == nil {
			all[i].Lag, err = q.lag(ctx, stream, subjectOf(q.prefix+name, int(b.Partition), q.options.Partitions), b.Prefix)
		}
	}
	if err != nil {
		return nil, problem("read backlog", name, interlock.Retryable, err)
	}
	return all, nil
}

// lag counts the messages of a subject from a sequence number on, by consumers on replicas that the servers choose. Only
// the leader of the stream is sure to have all messages, so it creates consumers until one is there.
func (q *Queue) lag(ctx context.Context, stream jetstream.Stream, subject string, from int64) (int64, error) {
	for {
		c, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, FilterSubject: subject,
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(1, from)),
			InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1})
		if err != nil {
			return 0, err
		}
		info := c.CachedInfo()
		if err := stream.DeleteConsumer(ctx, info.Name); err != nil || onLeader(stream.CachedInfo(), info) {
			return int64(info.NumPending), err
		}
		if _, err := stream.Info(ctx); err != nil { // the leader may have changed
			return 0, err
		}
	}
}

// onLeader reports whether a consumer is on the leader of its stream; without a cluster it is.
func onLeader(stream *jetstream.StreamInfo, c *jetstream.ConsumerInfo) bool {
	return c.Cluster == nil || stream.Cluster != nil && c.Cluster.Leader == stream.Cluster.Leader
}
