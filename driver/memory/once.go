package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Once remembers in memory which messages a consumer has processed. It is the
// executable specification of driver.Once: each call is one step under a mutex, by
// this process's clock. An expired record stays until the next call for its
// message. All records end with the process.
type Once struct {
	mu       sync.Mutex
	messages map[message]delivered
}

type message struct{ consumer, id string }

// delivered is the record of a message until it expires.
type delivered struct {
	owner string
	hash  []byte
	done  bool
	until time.Time
}

var _ driver.Once = (*Once)(nil)

// NewOnce returns an empty Once. All users of it share its records.
func NewOnce() *Once { return &Once{messages: map[message]delivered{}} }

// Claim takes a message unless it is done or taken; see driver.Once.
func (o *Once) Claim(ctx context.Context, d driver.Delivery, lease time.Duration) (driver.Claimed, error) {
	if err := delivering(ctx, "claim message", d, lease); err != nil {
		return driver.Unclaimed, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	was, known := o.get(d)
	switch {
	case known && !bytes.Equal(was.hash, d.Hash):
		return driver.ClaimedOther, nil
	case known && was.done:
		return driver.ClaimedDone, nil
	case known && was.owner != d.Owner:
		return driver.Unclaimed, fail.New("claim message", d.ID, interlock.Retryable,
			&interlock.HeldError{Name: d.ID, Owner: was.owner, Until: was.until})
	}
	o.put(d, false, lease)
	return driver.ClaimedNow, nil
}

// Done records that the effect was applied; see driver.Once.
func (o *Once) Done(ctx context.Context, d driver.Delivery, keep time.Duration) error {
	const op = "record message"
	if err := delivering(ctx, op, d, keep); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, known := o.get(d); known && was.owner != d.Owner {
		return fail.New(op, d.ID, interlock.Definite, interlock.ErrLost)
	}
	o.put(d, true, keep)
	return nil
}

// Forget ends a claim; see driver.Once.
func (o *Once) Forget(ctx context.Context, d driver.Delivery) error {
	if err := delivering(ctx, "forget message", d, time.Second); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, known := o.get(d); known && was.owner == d.Owner && !was.done {
		delete(o.messages, message{d.Consumer, d.ID})
	}
	return nil
}

// get returns a record that has not expired. The caller holds the mutex.
func (o *Once) get(d driver.Delivery) (was delivered, known bool) {
	was, known = o.messages[message{d.Consumer, d.ID}]
	return was, known && time.Now().Before(was.until)
}

func (o *Once) put(d driver.Delivery, done bool, keep time.Duration) {
	o.messages[message{d.Consumer, d.ID}] = delivered{d.Owner, slices.Clone(d.Hash), done, time.Now().Add(keep)}
}

func delivering(ctx context.Context, op string, d driver.Delivery, keep time.Duration) error {
	if err := d.Check(); err != nil {
		return err
	}
	if keep < time.Millisecond || keep > driver.MaxKeep {
		return fail.New(op, d.ID, interlock.Bug, fmt.Errorf("a retention of %v is invalid: it must be 1ms to %v", keep, driver.MaxKeep))
	}
	if ctx.Err() != nil {
		return fail.Unsent(ctx, op, d.ID)
	}
	return nil
}
