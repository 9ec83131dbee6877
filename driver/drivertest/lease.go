package drivertest

import (
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// testLeasePerRequest checks that each claim has the TTL and the renewals of its
// request if Guarantees.MaxTTL allows it.
func testLeasePerRequest(s *scene) {
	d := s.open()
	g := d.Guarantees()
	if g.MaxTTL == 0 {
		s.Skip("all claims have the lease of the driver")
	}
	long := s.contender(d, lockName)
	long.req.TTL, long.req.Renew = 3*s.TTL, -1
	s.mustLast(long.acquire())
	token := long.grant.Token
	long.req.TTL = 6 * s.TTL
	if s.mustLast(long.acquire()); long.grant.Token != token {
		s.Fatalf("a repeated request made token %d of %d", long.grant.Token, token)
	}
	long.release()

	renewed := make(chan struct{}, 100)
	often := s.contender(d, "often")
	often.req.TTL, often.req.Renew = time.Hour, s.TTL/20 // the default would be every 20 minutes
	often.req.Events.Renewed = func(_ time.Duration, err error) {
		if err == nil {
			renewed <- struct{}{}
		}
	}
	often.acquire()
	for range 2 {
		select {
		case <-renewed:
		case <-time.After(patience):
			s.Fatal("it is not renewed as often as was asked")
		}
	}
	s.mustLast(often)
	often.release()

	short := s.contender(d, lockName)
	short.req.TTL, short.req.Renew = max(g.MinTTL, s.TTL/3), -1
	short.req.Events.Renewed = func(time.Duration, error) { s.Error("it was renewed") }
	short.acquire()
	next := s.contender(s.open(), lockName).acquire()
	if left := short.grant.Lease.Remaining(); left > 0 {
		s.Fatalf("another has it while %v were left", left)
	}
	s.mustIncrease([]interlock.Token{short.grant.Token, next.grant.Token})
	next.release()
	short.release()
	if len(short.req.Lost) > 0 {
		s.Fatalf("the end of a lease was reported as a loss: %v", <-short.req.Lost)
	}
	s.mustBeEmpty(lockName)
}

// mustLast requires that the claim and the backend have the TTL of the request.
func (s *scene) mustLast(c *contender) {
	s.Helper()
	least := c.req.TTL - c.req.TTL/50 - s.TTL // the machine may be slow
	if left := c.grant.Lease.Remaining(); left < least || left > c.req.TTL {
		s.Fatalf("%v remain of %v", left, c.req.TTL)
	}
	inspector, ok := c.d.(driver.Inspector)
	if !ok || s.Without&(Inspection|Expiry) != 0 {
		return
	}
	state, err := inspector.Lock(s.Context(), c.req.Name)
	if err != nil || state.Holder == nil || state.Holder.Expires < least || state.Holder.Expires > c.req.TTL {
		s.Fatalf("the backend keeps %+v of a lease of %v (%v)", state.Holder, c.req.TTL, err)
	}
}
