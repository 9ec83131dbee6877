package kafka

import (
	"cmp"
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// A Backlog is what is left of a partition that a consumer of this process has.
type Backlog = lanes.Backlog

// Backlogs asks for the backlog of each partition of a queue that consumers of this process
// have, by partition.
func (q *Queue) Backlogs(ctx context.Context, name string) ([]Backlog, error) {
	all := q.consumers.Backlogs(name)
	var partitions []int32
	for _, b := range all {
		partitions = append(partitions, b.Partition)
	}
	logs, err := q.logs(ctx, name, partitions)
	if err != nil {
		return nil, problem("read backlog", name, interlock.Retryable, err)
	}
	for i, b := range all {
		all[i].Lag = max(0, logs[b.Partition].end-b.Prefix)
	}
	return all, nil
}

// extent is what the log of a partition has.
type extent struct{ first, end int64 }

// logs asks which offsets partitions have. With an error it returns those of the partitions that answered.
func (q *Queue) logs(ctx context.Context, name string, partitions []int32) (map[int32]extent, error) {
	if len(partitions) == 0 {
		return nil, nil
	}
	first, failed := q.offsets(ctx, name, partitions, -2)
	end, err := q.offsets(ctx, name, partitions, -1)
	logs := map[int32]extent{}
	for p, at := range end {
		if from, ok := first[p]; ok {
			logs[p] = extent{from, at}
		}
	}
	return logs, cmp.Or(failed, err)
}

// offsets asks for the offsets of partitions at a timestamp: -2 is the first, -1 the end.
func (q *Queue) offsets(ctx context.Context, name string, partitions []int32, at int64) (map[int32]int64, error) {
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID = -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = name
	for _, p := range partitions {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = p, at
		topic.Partitions = append(topic.Partitions, partition)
	}
	r.Topics = append(r.Topics, topic)
	answer, failed := r.RequestWith(ctx, q.client) // with an error, too, it has what some brokers answered
	if answer == nil {
		return nil, failed
	}
	offsets := map[int32]int64{}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				failed = err
			} else {
				offsets[p.Partition] = p.Offset
			}
		}
	}
	return offsets, failed
}
