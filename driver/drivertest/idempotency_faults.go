package drivertest

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// testLostReplyToClaim checks that another claim by the same owner converges.
func testLostReplyToClaim(s *requestScene) {
	s.claim(driver.IdempotencyClaim{ID: driver.IdempotencyID{Operation: "op", Key: "warm"}, Fingerprint: "f", Owner: "a", Lease: longLease})
	claim := func(ctx context.Context) error {
		r, err := s.store.Claim(ctx, claimBy("a", longLease))
		if err == nil && (r.Owner != "a" || r.Attempt != 1) {
			s.Fatalf("%+v", r)
		}
		return err
	}
	s.loseReply(claim)
	s.persist("claim again", claim)
	s.mustBe("a", 1, "")
}

func testLostReplyToFinish(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	finish := func(ctx context.Context) error { return s.store.Update(ctx, finishing("a", "answer")) }
	s.loseReply(finish)
	s.persist("finish again", finish)
	if r := s.mustBe("a", 1, ""); !r.Finished || string(r.Answer.Body) != "answer" {
		s.Fatalf("%+v", r)
	}
}

// testRequestsOverARestart checks that acknowledged records survive a kill of the server.
func testRequestsOverARestart(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(reached("a", "[1]"))
	s.must(finishing("a", "answer"))
	open := claimBy("b", longLease)
	open.ID.Key = "open"
	s.mustOwn(open, 1)
	claim := func(ctx context.Context) error {
		_, err := s.store.Claim(ctx, claimBy("c", longLease))
		return err
	}
	s.restartAround(claim)
	s.persist("claim after the restart", claim)
	if !s.durable {
		return
	}
	if r := s.mustBe("a", 1, "[1]"); !r.Finished {
		s.Fatalf("%+v", r)
	}
	open.Owner = "c"
	if r := s.claim(open); r.Owner != "b" || r.Attempt != 1 {
		s.Fatalf("%+v", r)
	}
}
