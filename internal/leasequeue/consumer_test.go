package leasequeue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// slow leases one message once, and answers after the lease has expired.
type slow struct{ claimed bool }

func (s *slow) Claim(ctx context.Context, _ string, lease time.Duration, _ driver.QueueLimit) ([]Group, time.Duration, error) {
	if s.claimed {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	s.claimed = true
	time.Sleep(lease + 10*time.Millisecond)
	return []Group{{ID: 1, Token: 1 << 12, Messages: []driver.Received{{QueueMessage: driver.QueueMessage{ID: "m", Key: "k"}}}}}, 0, nil
}

func (*slow) Renew(context.Context, []Held, time.Duration) (kept, lost []Held, err error) {
	return nil, nil, errors.New("nothing is held")
}

func (*slow) Settle(context.Context, []Settled) (lost []Held, err error) { return nil, nil }

// TestLeaseExpiresBeforeItsAnswer requires that a claim whose lease expired before the answer is
// never valid nor renewed, and can be settled.
func TestLeaseExpiresBeforeItsAnswer(t *testing.T) {
	c, err := Join(&slow{}, "q", driver.QueueOptions{Lease: MinLease}, nil)
	if err != nil {
		t.Fatal(err)
	}
	some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
	if err != nil || len(some) != 1 {
		t.Fatalf("received %v, %v", some, err)
	}
	claim := some[0].Claim
	if claim.Valid() {
		t.Error("the claim is valid")
	}
	select {
	case <-claim.Context().Done():
		if cause := context.Cause(claim.Context()); !errors.Is(cause, interlock.ErrExpired) {
			t.Errorf("it ended with %v", cause)
		}
	case <-time.After(20 * time.Second):
		t.Error("its context does not end")
	}
	if held, _ := c.holding(); len(held) > 0 {
		t.Errorf("%v is renewed", held)
	}
	if errs := c.Settle(t.Context(), []driver.Settlement{{Received: some[0], Outcome: driver.Ack}}); errs[0] != nil {
		t.Error(errs[0])
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
