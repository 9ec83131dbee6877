package kafka

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// TestFill: a commit that has waited for a rebalance leaves out the partitions that have gone,
// because the group would accept them from any member.
func TestFill(t *testing.T) {
	s := &session{consumer: &consumer{queue: &Queue{options: QueueOptions{Metadata: DefaultMetadata}},
		Consumer: lanes.NewConsumer(lanes.Hooks[*assignment]{})}}
	part := func(p int32, offset, token int64) *assignment {
		return &assignment{session: s, Assignment: lanes.Assignment{Partition: p, Held: true,
			Offsets: lanes.Restore(offset, lanes.Committed{}, token, 1)}}
	}
	of := map[int32]*assignment{}
	request := func() *kmsg.OffsetCommitRequest {
		r := kmsg.NewPtrOffsetCommitRequest()
		topic := kmsg.NewOffsetCommitRequestTopic()
		for p := range of {
			partition := kmsg.NewOffsetCommitRequestTopicPartition()
			partition.Partition = p
			topic.Partitions = append(topic.Partitions, partition)
		}
		r.Topics = append(r.Topics, topic)
		return r
	}
	for p := range int32(3) {
		of[p] = part(p, int64(10*p), 7)
	}
	s.Parts[1] = of[1]
	s.Parts[2] = part(2, 5, 8) // a later assignment
	r := request()
	if err := s.fill(r, of); err != nil {
		t.Fatal(err)
	}
	if got := r.Topics[0].Partitions; len(got) != 1 || got[0].Partition != 1 || got[0].Offset != 10 || lanes.Decode(10, *got[0].Metadata).Token != 7 {
		t.Errorf("the request has %+v", got)
	}
	delete(s.Parts, 1)
	if err := s.fill(request(), of); !errors.Is(err, interlock.ErrLost) {
		t.Errorf("a commit of what has gone: %v", err)
	}
}
