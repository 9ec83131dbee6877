package kafka

import (
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

// logs asks which offsets partitions have.
func (q *Queue) logs(ctx context.Context, name string, partitions []int32) (map[int32]extent, error) {
	logs := map[int32]extent{}
	if len(partitions) == 0 {
		return logs, nil
	}
	for _, at := range []int64{-2, -1} { // the first offset, and the end
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
		answer, err := r.RequestWith(ctx, q.client)
		if err != nil {
			return nil, err
		}
		for _, topic := range answer.Topics {
			for _, p := range topic.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, err
				}
				l := logs[p.Partition]
				if at == -2 {
					l.first = p.Offset
				} else {
					l.end = p.Offset
				}
				logs[p.Partition] = l
			}
		}
	}
	return logs, nil
}
