package lanes

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// An Assignment is the claim of a [Consumer] on a partition. A driver embeds it in its own type. The
// consumer's mutex guards Offsets, Ready and Held.
type Assignment struct {
	Partition int32
	Revoke    func() // closes revoked, once

	name, owner string // of the queue and the partition; of the consumer
	lease       *boottime.Lease
	ctx         context.Context
	cancel      context.CancelCauseFunc
	revoked     chan struct{}
	token       interlock.Token

	Offsets *Partition // nil until Begin
	Ready   bool       // the token is stored: messages may be delivered
	Held    bool       // commits say that the assignment goes on
}

// A part is a driver's type of assignment, which embeds an [Assignment].
type part interface {
	comparable
	driver.Assignment
	base() *Assignment
}

func (a *Assignment) base() *Assignment { return a }

// NewAssignment is a partition of a queue, under a part of the lease of a session.
func NewAssignment(queue string, partition int32, owner string, session *boottime.Lease) Assignment {
	revoked := make(chan struct{})
	a := Assignment{Partition: partition, name: fmt.Sprintf("%s/%d", queue, partition), owner: owner, lease: session.Part(), revoked: revoked, Held: true}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	a.Revoke = sync.OnceFunc(func() { close(revoked) })
	return a
}

// Begin notes what was stored of the partition, with the token of this assignment.
func (a *Assignment) Begin(o *Partition) (err error) {
	a.Offsets = o
	a.token, err = interlock.NewToken(o.Token(), 0)
	return err
}

// Name is that of the queue and the partition.
func (a *Assignment) Name() string { return a.name }

// Owner is that of the consumer.
func (a *Assignment) Owner() string { return a.owner }

// Token rises with each assignment of the partition.
func (a *Assignment) Token() interlock.Token { return a.token }

// Context ends with the assignment.
func (a *Assignment) Context() context.Context { return a.ctx }

// Remaining is how long the session lasts without a renewal.
func (a *Assignment) Remaining() time.Duration { return a.lease.Remaining() }

// Valid reports whether the assignment lasts.
func (a *Assignment) Valid() bool { return a.ctx.Err() == nil && a.Remaining() > 0 }

// Revoked is closed when the partition is to be given up, and when the assignment ends.
func (a *Assignment) Revoked() <-chan struct{} { return a.revoked }

// End ends the assignment for a reason.
func (a *Assignment) End(cause error) {
	a.lease.End()
	a.cancel(cause)
	a.Revoke()
}
