// Package branch defines the terms of coordinators and participants: the identity of a call, and
// the classes of its errors. It does not make calls idempotent: without a barrier (txn/barrier) a
// participant repeats effects, or applies them after their undo.
//
//	func charge(ctx context.Context, o Order) (Receipt, error) {
//		c := branch.From(ctx)                          // transaction, branch, epoch, deadline
//		receipt, err := bank.Charge(ctx, c.Key(), o.Total)
//		switch {
//		case errors.Is(err, bank.ErrNoMoney):
//			return Receipt{}, branch.Fail(err)          // no effect, now or later
//		case errors.Is(err, bank.ErrBusy):
//			return Receipt{}, branch.Retry(err)         // no effect yet
//		}
//		return receipt, err                            // any other error: unknown
//	}
//
// Calls are delivered at least once, and possibly late: after a later call, or from a former
// coordinator. Their key, operation and epoch distinguish them.
package branch

import (
	"context"
	"net/url"
	"time"

	"github.com/interlock-dev/interlock"
)

// Operation is the operation that a call requests.
type Operation string

// The operations: do and undo of a saga's step; try, then confirm or cancel, of a branch of a TCC
// transaction; prepare, then commit or roll back, of a branch of a two-phase commit.
const (
	Do       Operation = "do"
	Undo     Operation = "undo"
	Try      Operation = "try"
	Confirm  Operation = "confirm"
	Cancel   Operation = "cancel"
	Prepare  Operation = "prepare"
	Commit   Operation = "commit"
	Rollback Operation = "rollback"
)

// A Call is one call of a participant.
type Call struct {
	Transaction string    // its id, 1 to driver.MaxTransaction bytes
	Branch      string    // of the transaction: a saga's step, a resource; 1 to 255 bytes
	Step        string    // of the branch, where it has several: an index; usually empty, at most 255 bytes
	Operation   Operation // the requested one
	Attempt     int       // from 1, counted by the coordinator that calls
	// Epoch is the token of the coordinator's claim, 0 without one. A resource with a guard can
	// refuse lower ones. A participant with a barrier need not.
	Epoch interlock.Token
	// Begun is when the transaction began, in whole milliseconds. In calls of one
	// transaction it differs by at most driver.BarrierSpread: by the callers' clocks,
	// or because a TCC runs again. A participant may delete the records of
	// transactions that began before the coordinator's low-water mark, and refuses
	// their calls.
	Begun time.Time
	// Deadline is when the caller stops waiting for the answer; zero means never.
	Deadline time.Time
	// Until is when a try's hold expires, in whole milliseconds; zero in all other
	// calls. After it the participant asks the coordinator.
	Until time.Time
}

// Key returns the idempotency key: the same for all calls that must have one effect, and for no
// others.
func (c Call) Key() string {
	key := url.PathEscape(c.Transaction) + "/" + url.PathEscape(c.Branch)
	if c.Step != "" {
		key += "/" + url.PathEscape(c.Step)
	}
	return key + "/" + string(c.Operation)
}

type callKey struct{}

// With returns a context with a call, for [From].
func With(ctx context.Context, c Call) context.Context { return context.WithValue(ctx, callKey{}, c) }

// From returns the call that ctx belongs to, or the zero Call.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}
