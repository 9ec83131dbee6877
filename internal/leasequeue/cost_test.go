package leasequeue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// plenty has a message of another key whenever one is wanted, and never renews.
type plenty struct {
	slow
	last int64
}

func (p *plenty) Claim(_ context.Context, _ string, _ time.Duration, limit driver.QueueLimit) (all []Group, _ time.Duration, _ error) {
	messages := make([]driver.Received, limit.Messages)
	for i := range messages {
		p.last++
		all = append(all, Group{ID: p.last, Token: 1 << 12, Messages: messages[i : i+1]})
	}
	return all, 0, nil
}

// TestAllocations: a lease of one message costs its end, its context and the way to cancel it.
func TestAllocations(t *testing.T) {
	const leases = 100
	c, err := Join(&plenty{}, "q", driver.QueueOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(20, func() {
		some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: leases, Bytes: 1})
		settlements := make([]driver.Settlement, len(some))
		for i, m := range some {
			settlements[i] = driver.Settlement{Received: m, Outcome: driver.Ack}
		}
		if err := errors.Join(append(c.Settle(t.Context(), settlements), err)...); err != nil {
			panic(fmt.Sprint(len(some), err))
		}
	})
	if n > 3*leases+60 {
		t.Errorf("%d leases took %.0f allocations", leases, n)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLeasesExpireEachAtItsEnd: claims end with their leases if nothing renews them, and not before.
func TestLeasesExpireEachAtItsEnd(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c, err := Join(&plenty{}, "q", driver.QueueOptions{Lease: 10 * time.Second}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var claims []driver.Assignment
		for range 3 {
			time.Sleep(4 * time.Second)
			some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 2, Bytes: 1})
			if err != nil {
				t.Fatal(err)
			}
			claims = append(claims, some[0].Claim, some[1].Claim)
		}
		begin := time.Now().Add(-8 * time.Second) // of the first lease
		for i, claim := range claims {
			<-claim.Context().Done()
			want := 9900*time.Millisecond + time.Duration(i/2)*4*time.Second
			if took, cause := time.Since(begin), context.Cause(claim.Context()); took != want || !errors.Is(cause, interlock.ErrExpired) || claim.Valid() || !driver.IsRevoked(claim) {
				t.Errorf("claim %d ended after %v, want %v: %v", i, took, want, cause)
			}
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// hanging does not answer its first renewal.
type hanging struct {
	plenty
	renewals int
}

func (h *hanging) Renew(ctx context.Context, held []Held, _ time.Duration) (kept, lost []Held, err error) {
	if h.renewals++; h.renewals == 1 {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	return held, nil, nil
}

// TestRenewalIsRepeatedInTime: leases survive a renewal without an answer.
func TestRenewalIsRepeatedInTime(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c, err := Join(&hanging{}, "q", driver.QueueOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
		time.Sleep(2 * DefaultLease)
		if err != nil || !some[0].Claim.Valid() {
			t.Errorf("%v, the claim ended with %v", err, context.Cause(some[0].Claim.Context()))
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// late leases a message, and answers after a while.
type late struct{ slow }

func (*late) Claim(ctx context.Context, _ string, _ time.Duration, _ driver.QueueLimit) ([]Group, time.Duration, error) {
	select {
	case <-time.After(100 * time.Millisecond):
		return []Group{{ID: 1, Token: 1 << 12, Messages: make([]driver.Received, 1)}}, 0, nil
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx) // the message stays leased
	}
}

// TestEndOfReceiveLeavesNoLease: the answer to a claim is awaited, as only it names the leases.
func TestEndOfReceiveLeavesNoLease(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c, err := Join(&late{}, "q", driver.QueueOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if some, err := c.Receive(ctx, driver.QueueLimit{Messages: 1, Bytes: 1}); len(some) != 1 || err != nil {
			t.Errorf("received %v, %v", some, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseDuringReceive: the leases of a claim under way are released, so that their messages need not wait for
// their end and have not been attempted.
func TestCloseDuringReceive(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := &releases{}
		c, err := Join(store, "q", driver.QueueOptions{}, nil)
		testbed.OK(t, err)
		received := make(chan []*driver.Received)
		go func() {
			some, _ := c.Receive(context.Background(), driver.QueueLimit{Messages: 1, Bytes: 1})
			received <- some
		}()
		time.Sleep(50 * time.Millisecond)
		testbed.OK(t, c.Close(t.Context()))
		some := <-received
		if len(store.settled) != 1 || !store.settled[0].Finished || len(store.settled[0].Outcomes) > 0 {
			t.Errorf("released %+v", store.settled)
		}
		if len(some) != 1 || !errors.Is(context.Cause(some[0].Claim.Context()), interlock.ErrReleased) {
			t.Errorf("%d messages are left", len(some))
		}
	})
}

// releases records what is settled.
type releases struct {
	late
	settled []Settled
}

func (r *releases) Settle(_ context.Context, settled []Settled) (lost []Held, err error) {
	r.settled = append(r.settled, settled...)
	return nil, nil
}

// unanswered settles, and loses its first answers. Whatever is held is gone then.
type unanswered struct {
	plenty
	failures int
	mute     bool // it does not answer renewals
}

func (u *unanswered) Settle(_ context.Context, settled []Settled) (lost []Held, err error) {
	if u.failures--; u.failures >= 0 {
		return nil, &interlock.Error{Op: "settle", Kind: interlock.Uncertain, Err: errors.New("no answer")}
	}
	for _, s := range settled {
		lost = append(lost, s.Held)
	}
	return lost, nil
}

func (u *unanswered) Renew(ctx context.Context, held []Held, lease time.Duration) (kept, lost []Held, err error) {
	if u.mute {
		return u.slow.Renew(ctx, held, lease)
	}
	return nil, held, nil
}

// TestSettleIsRepeated: a group that is gone while its lease lasts was freed by a Settle whose answer was
// lost. Without such a Settle, or after the lease, it is lost.
func TestSettleIsRepeated(t *testing.T) {
	for _, c := range []struct {
		failures int
		pause    time.Duration // before the repetition
		mute     bool
		want     error
	}{
		{failures: 0, want: interlock.ErrLost},
		{failures: 1},
		{failures: 2},
		{failures: 1, pause: 4 * time.Second}, // a renewal has found it gone
		{failures: 1, pause: 4 * time.Second, mute: true},
		{failures: 1, pause: 11 * time.Second, mute: true, want: interlock.ErrLost},
	} {
		virtual.Test(t, func(t *testing.T) {
			u := &unanswered{failures: c.failures, mute: c.mute}
			q, err := Join(u, "q", driver.QueueOptions{Lease: 10 * time.Second}, nil)
			testbed.OK(t, err)
			some, err := q.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
			testbed.OK(t, err)
			ack := []driver.Settlement{{Received: some[0], Outcome: driver.Ack}}
			for range c.failures {
				if err := q.Settle(t.Context(), ack)[0]; interlock.Kind(err) != interlock.Uncertain {
					t.Errorf("%+v: %v", c, err)
				}
			}
			time.Sleep(c.pause)
			for range 2 {
				if err := q.Settle(t.Context(), ack)[0]; !errors.Is(err, c.want) {
					t.Errorf("%+v: repeated: %v", c, err)
				}
			}
			if cause := context.Cause(some[0].Claim.Context()); errors.Is(cause, interlock.ErrReleased) != (c.want == nil) {
				t.Errorf("%+v: the claim ended with %v", c, cause)
			}
			testbed.OK(t, q.Close(t.Context()))
		})
	}
}

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
