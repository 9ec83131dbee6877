package nats

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// assignment is a partition in the hands of a consumer, as a [driver.Assignment]. The
// consumer's mutex guards what follows revoke.
type assignment struct {
	session   *session
	partition int
	subject   string
	lease     *boottime.Lease // a part of the session's
	ctx       context.Context
	cancel    context.CancelCauseFunc
	revoked   chan struct{}
	revoke    func() // closes it, once

	token      interlock.Token
	offsets    *lanes.Partition[driver.Received] // nil until the position was read
	ready      bool                              // its token is recorded: messages may be delivered
	held       bool                              // records say that it goes on
	created    int64                             // when the stream was, in ns
	end        int64                             // behind its last message when the assignment began
	revision   uint64                            // of its position
	next       *batch                            // of commits
	committing bool
}

var _ driver.Assignment = (*assignment)(nil)

func (s *session) newAssignment(p int) *assignment {
	a := &assignment{session: s, partition: p, subject: subjectOf(s.base, p, s.queue.options.Partitions), lease: s.lease.Part(), revoked: make(chan struct{}), held: true}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	a.revoke = sync.OnceFunc(func() { close(a.revoked) })
	return a
}

// Name is that of the queue and the partition.
func (a *assignment) Name() string { return fmt.Sprintf("%s/%d", a.session.name, a.partition) }

// Owner is that of the consumer.
func (a *assignment) Owner() string { return a.session.owner }

// Token rises with each assignment of the partition.
func (a *assignment) Token() interlock.Token { return a.token }

// Context ends with the assignment.
func (a *assignment) Context() context.Context { return a.ctx }

// Remaining is how long the member's lease lasts without a renewal.
func (a *assignment) Remaining() time.Duration { return a.lease.Remaining() }

// Valid reports whether the assignment lasts.
func (a *assignment) Valid() bool { return a.ctx.Err() == nil && a.Remaining() > 0 }

// Revoked is closed when the partition is to move to another member, and when the assignment ends.
func (a *assignment) Revoked() <-chan struct{} { return a.revoked }

// live reports whether the partition is still assigned. The mutex is held.
func (a *assignment) live() bool { return a.session.parts[a.partition] == a }

// over ends the assignment for a reason.
func (a *assignment) over(cause error) {
	a.lease.End()
	a.cancel(cause)
	a.revoke()
}

// run owns the partition, from its claim at a revision of the owner's record to its release.
func (a *assignment) run(revision uint64) {
	s := a.session
	revision, ok := s.swap(s.ctx, s.ownerKey(a.partition), []byte(s.id), revision, func(value []byte) bool { return string(value) == s.id })
	if ok && a.begin() {
		a.read()
		a.finish()
	} else {
		pause(s.ctx, retryPause) // the view may be behind
	}
	lives := false
	s.note(func() { lives = a.live() })
	if ok && lives {
		ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
		_, _ = s.swap(ctx, s.ownerKey(a.partition), nil, revision, func(value []byte) bool { return len(value) == 0 })
		cancel()
	}
	s.note(func() {
		a.over(interlock.ErrReleased)
		if a.live() {
			delete(s.parts, a.partition)
		}
	})
}

// finish gives the partition up: nothing more is delivered, what is being handled is waited for,
// the outcomes are recorded.
func (a *assignment) finish() {
	s := a.session
	s.note(func() { a.ready = false })
	cause := error(interlock.ErrReleased)
	if !a.drained() && s.life.Err() == nil {
		cause = interlock.ErrLost
	}
	s.note(func() {
		a.held = false
		a.over(cause)
	})
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	if err := a.commit(ctx); err != nil && interlock.Kind(err) != interlock.Definite {
		s.hinder(fmt.Errorf("record a position: %w", err))
	}
}

// drained waits until nothing of the partition is being handled, for a limited time.
func (a *assignment) drained() bool {
	s := a.session
	timer := time.NewTimer(s.queue.options.Drain)
	defer timer.Stop()
	for {
		s.mu.Lock()
		over := !a.live() || a.offsets.Delivered() == 0
		changed := s.changed
		s.mu.Unlock()
		if over {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-s.ctx.Done():
			return false
		}
	}
}
