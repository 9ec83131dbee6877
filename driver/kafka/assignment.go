package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// assignment is a partition in the hands of a consumer, as a [driver.Assignment]. The
// consumer's mutex guards offsets, held and stopped.
type assignment struct {
	session   *session
	topic     string
	partition int32
	token     interlock.Token
	lease     *boottime.Lease // a part of the session's
	ctx       context.Context
	cancel    context.CancelCauseFunc
	revoked   chan struct{}
	revoke    func() // closes it, once

	offsets *lanes.Partition[*kgo.Record]
	ready   bool // its token is committed: messages may be delivered
	held    bool // commits say that it goes on
	full    bool // its fetches are paused
	cut     bool // the metadata of the last commit had no room for all
}

var _ driver.Assignment = (*assignment)(nil)

func newAssignment(s *session, partition int32, o *lanes.Partition[*kgo.Record]) (*assignment, error) {
	token, err := interlock.NewToken(o.Token(), 0)
	if err != nil {
		return nil, err
	}
	a := &assignment{session: s, topic: s.name, partition: partition, token: token, lease: s.lease.Part(), revoked: make(chan struct{}), offsets: o, held: true}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	a.revoke = sync.OnceFunc(func() { close(a.revoked) })
	return a, nil
}

// Name is that of the topic and the partition.
func (a *assignment) Name() string { return fmt.Sprintf("%s/%d", a.topic, a.partition) }

// Owner is that of the consumer.
func (a *assignment) Owner() string { return a.session.owner }

// Token rises with each assignment of the partition.
func (a *assignment) Token() interlock.Token { return a.token }

// Context ends with the assignment.
func (a *assignment) Context() context.Context { return a.ctx }

// Remaining is how long the session lasts without a heartbeat.
func (a *assignment) Remaining() time.Duration { return a.lease.Remaining() }

// Valid reports whether the assignment lasts.
func (a *assignment) Valid() bool { return a.ctx.Err() == nil && a.Remaining() > 0 }

// Revoked is closed when the group takes the partition away, and when the assignment ends.
func (a *assignment) Revoked() <-chan struct{} { return a.revoked }

// end ends the assignment for a reason.
func (a *assignment) end(cause error) {
	a.lease.End()
	a.cancel(cause)
	a.revoke()
}
