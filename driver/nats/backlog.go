package nats

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
)

// A Backlog is what is left of a partition that a consumer of this process has.
type Backlog struct {
	Partition int
	// Lag is how many messages of the partition the stream has from the first that is not
	// completed; some of them may be completed.
	Lag int64
	// Age is how long ago the first message that is not completed was stored, by the clocks of its
	// server and of this process; 0 if it was not read yet.
	Age time.Duration
	// Parked are the keys that Resume lets go on.
	Parked []string
}

// Backlogs asks for the backlog of each partition of a queue that consumers of this process
// have, by partition.
func (q *Queue) Backlogs(ctx context.Context, name string) (all []Backlog, err error) {
	prefixes := map[int]int64{}
	q.mu.Lock()
	for c := range q.consumers {
		if c.name != name {
			continue
		}
		c.mu.Lock()
		for _, a := range c.assignments() {
			b := Backlog{Partition: a.partition}
			if r, ok := a.offsets.First(); ok {
				b.Age = max(0, time.Since(r.Added))
			}
			b.Parked = a.offsets.Parked()
			prefixes[a.partition] = a.offsets.Prefix()
			all = append(all, b)
		}
		c.mu.Unlock()
	}
	q.mu.Unlock()
	slices.SortFunc(all, func(a, b Backlog) int { return cmp.Compare(a.Partition, b.Partition) })
	stream, err := q.stream(ctx, q.prefix+name)
	for i := range all {
		if err == nil {
			all[i].Lag, err = q.lag(ctx, stream, subjectOf(q.prefix+name, all[i].Partition, q.options.Partitions), prefixes[all[i].Partition])
		}
	}
	if err != nil {
		return nil, problem("read backlog", name, interlock.Retryable, err)
	}
	return all, nil
}

// lag counts the messages of a subject from a sequence number on.
func (q *Queue) lag(ctx context.Context, stream jetstream.Stream, subject string, from int64) (int64, error) {
	c, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, FilterSubject: subject,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(1, from)),
		InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1})
	if err != nil {
		return 0, err
	}
	return int64(c.CachedInfo().NumPending), stream.DeleteConsumer(ctx, c.CachedInfo().Name)
}
