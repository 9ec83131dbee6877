package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// IdempotencyHarness gives [RunIdempotency] access to one driver.Idempotency and its
// store.
type IdempotencyHarness = StoreHarness[driver.Idempotency]

// IdempotencyBackend is one running store of requests.
type IdempotencyBackend = StoreBackend[driver.Idempotency]

// RunIdempotency runs the conformance suite of driver.Idempotency.
func RunIdempotency(t *testing.T, h IdempotencyHarness) {
	runStore(t, h, func(s *storeScene[driver.Idempotency]) *requestScene {
		return &requestScene{storeScene: s}
	}, []suiteTest[*requestScene]{
		{"ClaimMakesARecord", 0, testClaimMakes},
		{"ClaimByAnotherChangesNothing", 0, testClaimByAnother},
		{"ClaimAgainConverges", 0, testClaimAgain},
		{"LapsedLeaseIsTaken", 0, testLapsedLease},
		{"LeaseIsRenewed", 0, testLeaseIsRenewed},
		{"OvertakenOwnerChangesNothing", 0, testOvertakenOwner},
		{"LapsedOwnerMayFinish", 0, testLapsedOwner},
		{"FinishedIsFinal", 0, testFinishedIsFinal},
		{"OtherFingerprintTakesNothing", 0, testOtherFingerprint},
		{"ForgottenIsNew", 0, testForgotten},
		{"RequestBytesAreData", 0, testRequestBytes},
		{"RequestNamesAreData", 0, testRequestNames},
		{"ClaimCompetition", 0, func(s *requestScene) { s.compete(1) }},
		{"TakeOverCompetition", 0, testTakeOverCompetition},
		{"UnfinishedAreListed", 0, testUnfinished},
		{"RemovedWhenItsTimeHasPassed", 0, testRemoved},
		{"BadClaimIsABug", 0, testBadClaim},
		{"RequestContextAlreadyEnded", 0, testRequestContext},
		{"LostReplyToClaim", Servers | LostReplies | onPaths, testLostReplyToClaim},
		{"LostReplyToFinish", Servers | LostReplies | onPaths, testLostReplyToFinish},
		{"RequestsOverARestart", Servers, testRequestsOverARestart},
	})
}

// requestScene is one test with its store and a first opening of it.
type requestScene struct {
	*storeScene[driver.Idempotency]
}

// Leases of the suite: one outlasts a test, one ends soon.
const (
	longLease  = 10 * time.Minute
	shortLease = 150 * time.Millisecond
)

// requestID is the request that most tests claim.
var requestID = driver.IdempotencyID{Scope: "alice", Operation: "POST /orders", Key: "k"}

func claimBy(owner string, lease time.Duration) driver.IdempotencyClaim {
	return driver.IdempotencyClaim{ID: requestID, Fingerprint: "f", Owner: owner, Lease: lease, Input: []byte("of " + owner)}
}

func (s *requestScene) claim(c driver.IdempotencyClaim) driver.IdempotencyRecord {
	s.Helper()
	r, err := s.store.Claim(s.Context(), c)
	if err != nil {
		s.Fatalf("claim by %s: %v", c.Owner, err)
	}
	return r
}

// mustOwn requires that a claim makes owner the owner of the given attempt.
func (s *requestScene) mustOwn(c driver.IdempotencyClaim, attempt int) driver.IdempotencyRecord {
	s.Helper()
	r := s.claim(c)
	if r.Owner != c.Owner || r.Attempt != attempt || r.Finished || r.ID != c.ID || r.Remaining <= 0 || r.Remaining > c.Lease {
		s.Fatalf("claim by %s: %+v, want attempt %d", c.Owner, r, attempt)
	}
	return r
}

// mustBe requires that another claimant sees a record of owner.
func (s *requestScene) mustBe(owner string, attempt int, points string) driver.IdempotencyRecord {
	s.Helper()
	r := s.claim(claimBy("looker", longLease))
	if r.Owner != owner || r.Attempt != attempt || string(r.Points) != points {
		s.Fatalf("the record is %+v, want one of %s, attempt %d, with points %q", r, owner, attempt, points)
	}
	return r
}

// takeWhenLapsed claims until the previous lease has expired.
func (s *requestScene) takeWhenLapsed(c driver.IdempotencyClaim) (r driver.IdempotencyRecord) {
	s.Helper()
	testbed.Eventually(s, c.Owner+" takes over", patience, func() bool { r = s.claim(c); return r.Owner == c.Owner })
	return r
}

func renewal(owner string, lease time.Duration) driver.IdempotencyUpdate {
	return driver.IdempotencyUpdate{ID: requestID, Owner: owner, Lease: lease}
}

func reached(owner, points string) driver.IdempotencyUpdate {
	u := renewal(owner, longLease)
	u.Points = []byte(points)
	return u
}

func finishing(owner, body string) driver.IdempotencyUpdate {
	u := renewal(owner, longLease)
	u.Answer = &driver.IdempotencyAnswer{Status: 201, Header: []byte("A: b\r\n"), Body: []byte(body)}
	u.Keep = time.Hour
	return u
}

func forgetting(owner string) driver.IdempotencyUpdate {
	u := renewal(owner, 0)
	u.Forget = true
	return u
}

func (s *requestScene) must(u driver.IdempotencyUpdate) {
	s.Helper()
	if err := s.store.Update(s.Context(), u); err != nil {
		s.Fatalf("update by %s: %v", u.Owner, err)
	}
}

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
