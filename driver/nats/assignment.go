package nats

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// assignment is a consumer's claim on a partition. The consumer's mutex guards the fields after
// subject.
type assignment struct {
	lanes.Assignment
	session  *session
	subject  string
	created  int64  // when the stream was created, in ns
	revision uint64 // of its position
}

func (s *session) newAssignment(p int) *assignment {
	return &assignment{session: s, subject: subjectOf(s.base, p, s.queue.options.Partitions),
		Assignment: lanes.NewAssignment(s.Queue, int32(p), s.Owner, s.lease)}
}

// run owns the partition, from its claim at a revision of the owner's record to its release.
func (a *assignment) run(revision uint64) {
	s := a.session
	revision, ok := s.swap(s.ctx, s.ownerKey(a.Partition), []byte(s.id), revision, func(value []byte) bool { return string(value) == s.id })
	if ok && a.begin() {
		a.read()
		if err := s.GiveUp(s.ctx, s.queue.options.Drain, requestLimit, a); err != nil {
			s.ReportTransient(fmt.Errorf("record a position: %w", err))
		}
	} else {
		lanes.Pause(s.ctx, retryPause) // the view may be stale
	}
	lives := false
	s.Update(func() { lives = s.IsAssigned(a) })
	if ok && lives {
		ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
		_, _ = s.swap(ctx, s.ownerKey(a.Partition), nil, revision, func(value []byte) bool { return len(value) == 0 })
		cancel()
	}
	a.End(interlock.ErrReleased)
	s.Remove(a)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
