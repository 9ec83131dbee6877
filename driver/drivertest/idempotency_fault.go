package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// lose does a step whose reply is lost, and requires that it says so in time.
func (s *requestScene) lose(step func(context.Context) error) {
	s.Helper()
	errTimeUp := errors.New("the caller has no more time")
	s.faults.(ReplyDropper).DropReplies()
	ctx, cancel := context.WithTimeoutCause(s.Context(), 500*time.Millisecond, errTimeUp)
	defer cancel()
	began := time.Now()
	err := step(ctx)
	if took := time.Since(began); took > 3*time.Second {
		s.Fatalf("it came back after %v, and had 500 ms", took)
	}
	s.mustFail(err, interlock.Uncertain, errTimeUp)
	s.mustFail(err, interlock.Uncertain, interlock.ErrUncertain)
	s.faults.Heal()
}

// testLostReplyToClaim: it was made, and claiming again as the same owner converges.
func testLostReplyToClaim(s *requestScene) {
	s.claim(driver.IdempotencyClaim{ID: driver.IdempotencyID{Operation: "op", Key: "warm"}, Fingerprint: "f", Owner: "a", Lease: longLease})
	claim := func(ctx context.Context) error {
		r, err := s.records.Claim(ctx, claimBy("a", longLease))
		if err == nil && (r.Owner != "a" || r.Attempt != 1) {
			s.Fatalf("%+v", r)
		}
		return err
	}
	s.lose(claim)
	s.persist("claim again", claim)
	s.mustBe("a", 1, "")
}

func testLostReplyToFinish(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	finish := func(ctx context.Context) error { return s.records.Update(ctx, finishing("a", "answer")) }
	s.lose(finish)
	s.persist("finish again", finish)
	if r := s.mustBe("a", 1, ""); !r.Finished || string(r.Answer.Body) != "answer" {
		s.Fatalf("%+v", r)
	}
}

// testRequestsOverARestart: what was answered is not lost with the server's process.
func testRequestsOverARestart(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(reached("a", "[1]"))
	s.must(finishing("a", "answer"))
	open := claimBy("b", longLease)
	open.ID.Key = "open"
	s.mustOwn(open, 1)
	s.faults.Kill()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	_, err := s.records.Claim(ctx, claimBy("c", longLease))
	cancel()
	if kind := interlock.Kind(err); err == nil || kind != interlock.Uncertain && kind != interlock.Retryable {
		s.Fatalf("claim without a server: %v (%v)", err, kind)
	}
	s.faults.Restart()
	s.persist("claim after the restart", func(ctx context.Context) error {
		_, err := s.records.Claim(ctx, claimBy("c", longLease))
		return err
	})
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
