package kafka

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
)

// send commits the state of assignments; see [lanes.Commits]. What is committed is read when the request is about to leave, and
// partitions that are not assigned any more are left out: the request may have waited for a
// rebalance, and the group does not compare the sender of an offset with the partition's owner.
func (s *session) send(answers map[*assignment]error) {
	ctx, cancel := context.WithTimeout(context.Background(), commitLimit)
	defer cancel()
	of := s.last(answers)
	if len(of) == 0 {
		return
	}
	offsets := map[int32]kgo.EpochOffset{}
	for p := range of {
		offsets[p] = kgo.EpochOffset{}
	}
	fill := func(r *kmsg.OffsetCommitRequest) error { return s.fill(r, of) }
	var answer *kmsg.OffsetCommitResponse
	var err error
	done := func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, r *kmsg.OffsetCommitResponse, e error) {
		answer, err = r, e
	}
	s.client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, fill), map[string]map[int32]kgo.EpochOffset{s.Queue: offsets}, done) // waits for done
	switch {
	case err == nil:
		s.answer(answers, of, answer)
	case !errors.Is(err, interlock.ErrLost):
		for _, a := range of {
			answers[a] = failed(a, interlock.Uncertain, err)
		}
	}
}

// last sets the answer of each assignment to an ErrLost, and returns those that are still assigned, by
// partition. A batch can have an earlier assignment of a partition, too.
func (s *session) last(answers map[*assignment]error) map[int32]*assignment {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	of := map[int32]*assignment{}
	for a := range answers {
		if answers[a] = lost(a); s.IsAssigned(a) {
			of[a.Partition] = a
		}
	}
	return of
}

func failed(a *assignment, kind interlock.ErrorKind, err error) error {
	return problem("commit", a.Name(), kind, err)
}

func lost(a *assignment) error { return failed(a, interlock.Definite, interlock.ErrLost) }

// fill puts the present state into a request.
func (s *session) fill(r *kmsg.OffsetCommitRequest, of map[int32]*assignment) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for i := range r.Topics {
		t := &r.Topics[i]
		t.Partitions = slices.DeleteFunc(t.Partitions, func(p kmsg.OffsetCommitRequestTopicPartition) bool { return !s.IsAssigned(of[p.Partition]) })
		if len(t.Partitions) == 0 {
			return interlock.ErrLost
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			a := of[p.Partition]
			c := a.Offsets.Snapshot(a.Held)
			if a.loss != nil {
				c = c.Until(a.loss.ResetTo)
			}
			text, whole := c.Encode(s.queue.options.Metadata)
			a.cut = !whole
			p.Offset, p.LeaderEpoch, p.Metadata = c.Prefix, a.epoch, &text
		}
	}
	return nil
}

// answer notes the result of each partition.
func (s *session) answer(answers map[*assignment]error, of map[int32]*assignment, r *kmsg.OffsetCommitResponse) {
	gone := false
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			a := of[p.Partition]
			err := kerr.ErrorForCode(p.ErrorCode)
			switch {
			case err == nil:
				answers[a] = nil
			case errors.Is(err, kerr.FencedInstanceID):
				s.OnGroupManageError(err) // answers[a] is an ErrLost
			case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedMemberEpoch):
				gone = true
			default:
				answers[a] = failed(a, interlock.Retryable, err)
			}
		}
	}
	if gone {
		s.expelled(answers)
	}
}

// expelled ends the session if assignments are still its own that the group has given to others. The
// client may have joined again meanwhile, and would not assign them to itself once more.
func (s *session) expelled(answers map[*assignment]error) {
	live := false
	s.Mu.Lock()
	for a := range answers {
		answers[a] = lost(a)
		live = live || s.IsAssigned(a)
	}
	s.Mu.Unlock()
	if live {
		s.lose(interlock.ErrLost)
		s.stop(interlock.ErrLost)
	}
}
