package kafka

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/lanes"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// request commits partitions.
func request(of map[int32]*assignment) *kmsg.OffsetCommitRequest {
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
	for p := range int32(3) {
		of[p] = part(p, int64(10*p), 7)
	}
	s.Parts[1] = of[1]
	s.Parts[2] = part(2, 5, 8) // a later assignment
	r := request(of)
	if err := s.fill(r, of); err != nil {
		t.Fatal(err)
	}
	if got := r.Topics[0].Partitions; len(got) != 1 || got[0].Partition != 1 || got[0].Offset != 10 || lanes.Decode(10, *got[0].Metadata).Token != 7 {
		t.Errorf("the request has %+v", got)
	}
	delete(s.Parts, 1)
	if err := s.fill(request(of), of); !errors.Is(err, interlock.ErrLost) {
		t.Errorf("a commit of what has gone: %v", err)
	}
	for range 20 { // the order of a map is random
		if last := s.last(map[*assignment]error{of[2]: nil, s.Parts[2]: nil}); len(last) != 1 || last[2] != s.Parts[2] {
			t.Fatalf("of an earlier and a later assignment of a partition, %v are committed", last)
		}
	}
}

// TestLogLostRecords: the log lost records that were read, and others will have their offsets. The session ends, and
// the next one begins there.
func TestLogLostRecords(t *testing.T) {
	s := &session{consumer: &consumer{queue: &Queue{options: QueueOptions{Metadata: DefaultMetadata}},
		Consumer: lanes.NewConsumer(lanes.Hooks[*assignment]{Problem: problem})}}
	s.ctx, s.stop = context.WithCancelCause(t.Context())
	defer s.stop(nil)
	of := map[int32]*assignment{}
	for p := range int32(2) {
		of[p] = &assignment{session: s, Assignment: lanes.Assignment{Partition: p, Held: true, Offsets: lanes.Restore(100, lanes.Committed{}, 7, 1)}}
	}
	s.Parts = maps.Clone(of)
	loss := &kgo.ErrDataLoss{Topic: "t", Partition: 1, ConsumedTo: 100, ResetTo: 80}
	s.keep(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t", Partitions: []kgo.FetchPartition{{Partition: 1, Err: loss}}}}}})
	if s.ctx.Err() == nil {
		t.Error("the session goes on")
	}
	if _, err := s.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1}); interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "offset 80 to 100") {
		t.Errorf("the loss is reported as %v", err)
	}
	r := request(of)
	testbed.OK(t, s.fill(r, of))
	for _, p := range r.Topics[0].Partitions {
		if want := int64(100 - 20*p.Partition); p.Offset != want || lanes.Decode(want, *p.Metadata).Token != 7 {
			t.Errorf("partition %d is committed at %d, want %d", p.Partition, p.Offset, want)
		}
	}
}

// TestReplacedRecords: a record that a former assignment has handled was lost, and one of a later leader has its
// offset.
func TestReplacedRecords(t *testing.T) {
	record := func(offset int64, epoch int32) *kgo.Record { return &kgo.Record{Offset: offset, LeaderEpoch: epoch} }
	for replaced, want := range map[bool]int64{true: 100, false: 103} {
		s := &session{consumer: &consumer{queue: &Queue{options: QueueOptions{Metadata: DefaultMetadata}},
			Consumer: lanes.NewConsumer(lanes.Hooks[*assignment]{Problem: problem})}}
		s.ctx, s.stop = context.WithCancelCause(t.Context())
		former := lanes.Restore(100, lanes.Committed{}, 6, 1)
		for offset := int64(100); offset < 103; offset++ {
			former.Arrive(offset, nil, 1)
		}
		former.Take(nil, &driver.QueueLimit{Messages: 3, Bytes: 3}, time.Now())
		former.Complete(101)
		former.Complete(102)
		text, _ := former.Snapshot(true).Encode(DefaultMetadata)
		c := lanes.Decode(100, text)
		a := &assignment{session: s, epoch: 2, known: c.Next, Assignment: lanes.Assignment{Held: true, Offsets: lanes.Restore(100, c, 7, 1)}}
		s.Parts[0] = a
		if replaced {
			a.add([]*kgo.Record{record(100, 2), record(101, 3), record(102, 3), record(103, 3)})
		} else {
			a.add([]*kgo.Record{record(100, 2), record(101, 2), record(102, 2)})
		}
		if ended := s.ctx.Err() != nil; ended != replaced {
			t.Errorf("a record is replaced: %v; the session has ended: %v", replaced, ended)
		}
		s.stop(nil)
		of := map[int32]*assignment{0: a}
		r := request(of)
		testbed.OK(t, s.fill(r, of))
		p := r.Topics[0].Partitions[0]
		if next := lanes.Decode(p.Offset, *p.Metadata).Next; p.Offset != 100 || next != want || p.LeaderEpoch != 2 {
			t.Errorf("committed: offset %d of epoch %d, read to %d; want to %d", p.Offset, p.LeaderEpoch, next, want)
		}
	}
}

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
