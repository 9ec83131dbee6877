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

// batch is one commit: of all partitions for which somebody asked while the former one was on
// its way.
type batch struct {
	answers map[*assignment]error
	done    chan struct{}
}

// commit commits the present state of partitions, and returns an error for each. One commit is
// on its way at a time; the next one takes all that were asked for since. An error is an
// ErrLost if the partition is not assigned any more.
func (s *session) commit(ctx context.Context, parts []*assignment) map[*assignment]error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		answers := map[*assignment]error{}
		for _, a := range parts {
			answers[a] = lost(a)
		}
		return answers
	}
	if s.next == nil {
		s.next = &batch{map[*assignment]error{}, make(chan struct{})}
	}
	b := s.next
	for _, a := range parts {
		b.answers[a] = nil
	}
	if !s.committing {
		s.committing = true
		s.commits.Go(s.commitAll)
	}
	s.mu.Unlock()
	select {
	case <-b.done:
		return b.answers
	case <-ctx.Done():
		unknown := map[*assignment]error{}
		for _, a := range parts {
			unknown[a] = problem("commit", a.Name(), interlock.Uncertain, context.Cause(ctx))
		}
		return unknown
	}
}

// commitAll sends batches until nobody asks for one.
func (s *session) commitAll() {
	for {
		s.mu.Lock()
		b := s.next
		if s.next = nil; b == nil {
			s.committing = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.send(b)
		close(b.done)
	}
}

// send commits a batch. What is committed is read when the request is about to leave, and
// partitions that are not assigned any more are left out: the request may have waited for a
// rebalance, and the group does not compare the sender of an offset with the partition's owner.
func (s *session) send(b *batch) {
	ctx, cancel := context.WithTimeout(context.Background(), commitLimit)
	defer cancel()
	of := map[int32]*assignment{}
	offsets := map[int32]kgo.EpochOffset{}
	for a := range b.answers {
		b.answers[a] = lost(a)
		of[a.partition] = a
		offsets[a.partition] = kgo.EpochOffset{}
	}
	fill := func(r *kmsg.OffsetCommitRequest) error { return s.fill(r, of) }
	var answer *kmsg.OffsetCommitResponse
	var err error
	done := func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, r *kmsg.OffsetCommitResponse, e error) {
		answer, err = r, e
	}
	s.client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, fill), map[string]map[int32]kgo.EpochOffset{s.name: offsets}, done) // waits for done
	switch {
	case err == nil:
		s.answer(b, of, answer)
	case !errors.Is(err, interlock.ErrLost):
		for a := range b.answers {
			b.answers[a] = problem("commit", a.Name(), interlock.Uncertain, err)
		}
	}
}

func lost(a *assignment) error {
	return problem("commit", a.Name(), interlock.Definite, interlock.ErrLost)
}

// fill puts the present state into a request.
func (s *session) fill(r *kmsg.OffsetCommitRequest, of map[int32]*assignment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Topics {
		t := &r.Topics[i]
		t.Partitions = slices.DeleteFunc(t.Partitions, func(p kmsg.OffsetCommitRequestTopicPartition) bool { return !of[p.Partition].live() })
		if len(t.Partitions) == 0 {
			return interlock.ErrLost
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			a := of[p.Partition]
			c := a.offsets.Snapshot(a.held)
			text, whole := c.Encode(s.queue.options.Metadata)
			a.cut = !whole
			p.Offset, p.LeaderEpoch, p.Metadata = c.Prefix, -1, &text
		}
	}
	return nil
}

// answer notes the result of each partition.
func (s *session) answer(b *batch, of map[int32]*assignment, r *kmsg.OffsetCommitResponse) {
	gone := false
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			a := of[p.Partition]
			err := kerr.ErrorForCode(p.ErrorCode)
			switch {
			case err == nil:
				b.answers[a] = nil
			case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID), errors.Is(err, kerr.FencedMemberEpoch):
				gone = true // b.answers[a] is an ErrLost
			default:
				b.answers[a] = problem("commit", a.Name(), interlock.Retryable, err)
			}
		}
	}
	if gone {
		s.lose(interlock.ErrLost)
		for a := range b.answers {
			b.answers[a] = lost(a)
		}
	}
}
