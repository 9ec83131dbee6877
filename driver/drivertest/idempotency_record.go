package drivertest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func testClaimMakes(s *requestScene) {
	r := s.mustOwn(claimBy("a", longLease), 1)
	if r.Fingerprint != "f" || string(r.Input) != "of a" || len(r.Points) > 0 || r.Age < 0 || r.Age > time.Minute || r.Remaining < longLease/2 {
		s.Fatalf("%+v", r)
	}
}

// testClaimByAnother checks that the claim returns the record and does not change it.
func testClaimByAnother(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(reached("a", "[1]"))
	for range 2 {
		s.mustBe("a", 1, "[1]")
	}
	if r := s.mustOwn(claimBy("a", longLease), 1); string(r.Input) != "of a" {
		s.Fatalf("%+v", r)
	}
}

// testClaimAgain checks that the same owner may claim again, with another lease, and
// after its lease has expired.
func testClaimAgain(s *requestScene) {
	s.mustOwn(claimBy("a", shortLease), 1)
	time.Sleep(shortLease) // no condition to wait for: every look is a claim
	s.mustOwn(claimBy("a", longLease), 1)
	s.mustBe("a", 1, "")
}

func testLapsedLease(s *requestScene) {
	s.mustOwn(claimBy("a", shortLease), 1)
	first := claimBy("a", shortLease)
	points := reached("a", "[1]")
	points.Lease = shortLease
	s.must(points)
	r := s.takeWhenLapsed(claimBy("b", shortLease))
	if r.Attempt != 2 || string(r.Input) != string(first.Input) || string(r.Points) != "[1]" || r.Remaining <= 0 {
		s.Fatalf("%+v", r)
	}
	if r = s.takeWhenLapsed(claimBy("c", longLease)); r.Attempt != 3 {
		s.Fatalf("%+v", r)
	}
}

// testLeaseIsRenewed checks renewals beyond the first lease, and after its end.
func testLeaseIsRenewed(s *requestScene) {
	s.mustOwn(claimBy("a", shortLease), 1)
	for range 6 {
		s.must(renewal("a", longLease))
		s.must(renewal("a", shortLease)) // the last renewal counts
	}
	s.must(renewal("a", longLease))
	if r := s.mustBe("a", 1, ""); r.Remaining < longLease/2 {
		s.Fatalf("%+v", r)
	}
}

// testOvertakenOwner checks that a lease that was given up is taken at once, and the fence: writes of
// a former owner are rejected.
func testOvertakenOwner(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(renewal("a", 0))
	s.mustOwn(claimBy("b", longLease), 2)
	for _, u := range []driver.IdempotencyUpdate{renewal("a", longLease), renewal("a", 0), reached("a", "[stale]"),
		finishing("a", "stale"), forgetting("a")} {
		s.mustFail(s.store.Update(s.Context(), u), interlock.Definite, interlock.ErrLost)
		if r := s.mustBe("b", 2, ""); r.Finished || r.Remaining < longLease/2 {
			s.Fatalf("%+v", r)
		}
	}
	s.must(finishing("b", "answer"))
	for _, u := range []driver.IdempotencyUpdate{reached("a", "[stale]"), finishing("a", "stale"), forgetting("a")} {
		s.mustFail(s.store.Update(s.Context(), u), interlock.Definite, interlock.ErrLost)
	}
	if r := s.mustBe("b", 2, ""); !r.Finished || string(r.Answer.Body) != "answer" {
		s.Fatalf("%+v", r)
	}
}

// testLapsedOwner checks that an owner whose lease has expired may write until a takeover.
func testLapsedOwner(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(renewal("a", 0))
	s.must(reached("a", "[1]"))
	s.mustBe("a", 1, "[1]")
	s.must(renewal("a", 0))
	s.must(finishing("a", "answer"))
	if r := s.mustBe("a", 1, "[1]"); !r.Finished {
		s.Fatalf("%+v", r)
	}
}

func testFinishedIsFinal(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	last := finishing("a", "answer")
	last.Points = []byte("[1]")
	s.must(last)
	for _, u := range []driver.IdempotencyUpdate{finishing("a", "another"), reached("a", "[2]"), renewal("a", 0), forgetting("a")} {
		s.must(u) // this owner did it before, so it has no further effect
	}
	r := s.mustBe("a", 1, "[1]")
	if !r.Finished || r.Answer.Status != 201 || string(r.Answer.Body) != "answer" || string(r.Answer.Header) != "A: b\r\n" || r.Answer.Digest != "" {
		s.Fatalf("%+v", r)
	}
	if r := s.claim(claimBy("a", longLease)); !r.Finished || r.Owner != "a" {
		s.Fatalf("its own owner sees %+v", r)
	}
}

// testOtherFingerprint checks that it is another request, in every state of this one.
func testOtherFingerprint(s *requestScene) {
	other := claimBy("b", longLease)
	other.Fingerprint = "g"
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(renewal("a", 0))
	for _, state := range []string{"lapsed", "finished"} {
		if r := s.claim(other); r.Owner != "a" || r.Attempt != 1 || r.Fingerprint != "f" {
			s.Fatalf("%s: %+v", state, r)
		}
		s.must(finishing("a", "answer"))
	}
	same := claimBy("a", longLease)
	same.Fingerprint = "g"
	if r := s.claim(same); r.Fingerprint != "f" {
		s.Fatalf("%+v", r)
	}
}

func testForgotten(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	s.must(reached("a", "[1]"))
	s.must(forgetting("a"))
	s.must(forgetting("a"))
	for _, u := range []driver.IdempotencyUpdate{renewal("a", longLease), reached("a", "[1]"), finishing("a", "late")} {
		s.mustFail(s.store.Update(s.Context(), u), interlock.Definite, interlock.ErrLost)
	}
	again := claimBy("b", longLease)
	again.Fingerprint = "g"
	if r := s.mustOwn(again, 1); len(r.Points) > 0 || string(r.Input) != "of b" || r.Fingerprint != "g" {
		s.Fatalf("%+v", r)
	}
	s.mustFail(s.store.Update(s.Context(), finishing("a", "late")), interlock.Definite, interlock.ErrLost)
	s.mustFail(s.store.Update(s.Context(), forgetting("a")), interlock.Definite, interlock.ErrLost)
	if found, err := s.store.Unfinished(s.Context(), driver.IdempotencyQuery{Limit: 10}); err != nil || len(found) > 0 {
		s.Fatalf("%+v, %v", found, err)
	}
}

// testRequestBytes checks that empty, arbitrary and large data is returned unchanged.
func testRequestBytes(s *requestScene) {
	var all []byte
	for b := range 256 {
		all = append(all, byte(b), '\'', '"', '\\')
	}
	for i, data := range [][]byte{nil, {}, {0}, all, bytes.Repeat([]byte("\xffx"), 300<<10)} {
		id := driver.IdempotencyID{Operation: "op", Key: fmt.Sprint("bytes ", i)}
		s.claim(driver.IdempotencyClaim{ID: id, Fingerprint: "f", Owner: "a", Lease: longLease, Input: data})
		answer := driver.IdempotencyAnswer{Status: i, Header: data, Body: data, Digest: fmt.Sprint(i)}
		points := data
		if len(points) == 0 {
			points = []byte("[]")
		}
		s.must(driver.IdempotencyUpdate{ID: id, Owner: "a", Points: points, Answer: &answer, Keep: time.Hour})
		r := s.claim(driver.IdempotencyClaim{ID: id, Fingerprint: "f", Owner: "b", Lease: longLease})
		if !r.Finished || !bytes.Equal(r.Input, data) || !bytes.Equal(r.Points, points) || !bytes.Equal(r.Answer.Header, data) ||
			!bytes.Equal(r.Answer.Body, data) || r.Answer.Status != i || r.Answer.Digest != fmt.Sprint(i) {
			s.Fatalf("%d bytes came back as %d, %d, %d, %d: status %d, digest %q", len(data), len(r.Input), len(r.Points),
				len(r.Answer.Header), len(r.Answer.Body), r.Answer.Status, r.Answer.Digest)
		}
	}
}

// testRequestNames checks that different names are different records.
func testRequestNames(s *requestScene) {
	long := strings.Repeat("n", driver.MaxIdempotencyName)
	ids := []driver.IdempotencyID{
		{Scope: "a", Operation: "b", Key: "c"}, {Scope: "", Operation: "ab", Key: "c"}, {Scope: "ab", Operation: "c", Key: "c"},
		{Scope: "a:b", Operation: "c", Key: "d"}, {Scope: "a", Operation: "b:c", Key: "d"}, {Scope: "a", Operation: "b", Key: "c:d"},
		{Scope: "A", Operation: "b", Key: "c"}, {Scope: "a", Operation: "b", Key: "C"}, {Scope: "a ", Operation: "b", Key: "c"}, {Scope: "a", Operation: "b", Key: "c "},
		{Scope: "1", Operation: "1", Key: "1:1"}, {Scope: "é", Operation: "b", Key: "c"}, {Scope: "e\u0301", Operation: "b", Key: "c"},
		{Scope: "it's \"\\", Operation: "b'; drop table x; --", Key: "$1 ? %s {tag}\r\n"}, {Scope: long, Operation: long, Key: long},
	}
	for i, id := range ids {
		r, err := s.store.Claim(s.Context(), driver.IdempotencyClaim{ID: id, Fingerprint: "f", Owner: fmt.Sprint(i), Lease: longLease})
		if err != nil || r.Owner != fmt.Sprint(i) {
			s.Fatalf("%+v is %+v, %v", id, r, err)
		}
		s.must(driver.IdempotencyUpdate{ID: id, Owner: fmt.Sprint(i)})
	}
	found, err := s.store.Unfinished(s.Context(), driver.IdempotencyQuery{Limit: 100})
	listed := map[driver.IdempotencyID]bool{}
	for _, r := range found {
		listed[r.ID] = true
	}
	for _, id := range ids {
		if !listed[id] {
			s.Fatalf("%+v is not among %d, %v", id, len(found), err)
		}
	}
}

// testTakeOverCompetition has many callers claim an abandoned request at the same time.
func testTakeOverCompetition(s *requestScene) {
	s.mustOwn(claimBy("first", longLease), 1)
	s.must(renewal("first", 0))
	s.compete(2)
}

// compete has many callers claim a request at the same time. One gets it, and all others see its
// owner.
func (s *requestScene) compete(attempt int) {
	const claims = 24
	var mu sync.Mutex
	owners := map[string]int{}
	s.atOnce(claims, func(i int, store driver.Idempotency) error {
		r, err := retried(func() (driver.IdempotencyRecord, error) {
			return store.Claim(s.Context(), claimBy(fmt.Sprint("c", i), longLease))
		})
		mu.Lock()
		defer mu.Unlock()
		if owners[r.Owner]++; err == nil && r.Attempt != attempt {
			return fmt.Errorf("%+v", r)
		}
		return err
	})
	if len(owners) != 1 {
		s.Fatalf("the claims returned these owners: %v", owners)
	}
}

func testUnfinished(s *requestScene) {
	query := func(q driver.IdempotencyQuery) (keys string) {
		s.Helper()
		found, err := s.store.Unfinished(s.Context(), q)
		testbed.OK(s, err)
		for _, r := range found {
			if keys += r.ID.Operation + r.ID.Key + " "; r.Remaining > 0 || r.Fingerprint != "f" || r.Age < 0 || r.Attempt < 1 {
				s.Fatalf("%+v", r)
			}
		}
		return keys
	}
	begin := func(operation, key string, attempts int, lapse bool) {
		id := driver.IdempotencyID{Scope: "s", Operation: operation, Key: key}
		for i := range attempts {
			owner := fmt.Sprint(i)
			s.claim(driver.IdempotencyClaim{ID: id, Fingerprint: "f", Owner: owner, Lease: longLease})
			if lapse || i < attempts-1 {
				s.must(driver.IdempotencyUpdate{ID: id, Owner: owner})
			}
		}
		time.Sleep(time.Millisecond) // so that leases end in order
	}
	begin("A", "1", 1, true)
	begin("A", "busy", 2, false)
	begin("B", "2", 3, true)
	begin("A", "3", 2, true)
	begin("A", "done", 1, true)
	s.must(driver.IdempotencyUpdate{ID: driver.IdempotencyID{Scope: "s", Operation: "A", Key: "done"}, Owner: "0",
		Answer: &driver.IdempotencyAnswer{}, Keep: time.Hour})
	for want, q := range map[string]driver.IdempotencyQuery{
		"A1 B2 A3 ": {Limit: 10}, "A1 B2 ": {Limit: 2}, "A1 A3 ": {Operation: "A", Limit: 10}, "A1 ": {Operation: "A", Limit: 10, Attempts: 2},
		"": {Limit: 10, Lapsed: time.Hour}, "B2 ": {Operation: "B", Limit: 1, Attempts: 4},
	} {
		if got := query(q); got != want {
			s.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
}

// testRemoved checks that answers are deleted after their retention, and unfinished
// records are not.
func testRemoved(s *requestScene) {
	s.mustOwn(claimBy("a", longLease), 1)
	soon := finishing("a", "answer")
	soon.Keep = time.Second
	s.must(soon)
	kept := driver.IdempotencyID{Operation: "op", Key: "kept"}
	s.claim(driver.IdempotencyClaim{ID: kept, Fingerprint: "f", Owner: "a", Lease: longLease})
	s.must(driver.IdempotencyUpdate{ID: kept, Owner: "a", Answer: &driver.IdempotencyAnswer{}, Keep: time.Hour})
	lapsed := driver.IdempotencyID{Operation: "op", Key: "lapsed"}
	s.claim(driver.IdempotencyClaim{ID: lapsed, Fingerprint: "f", Owner: "a", Lease: time.Millisecond})
	if n, err := s.store.Remove(s.Context(), 10); n != 0 || err != nil {
		s.Fatalf("removed %d, %v", n, err)
	}
	s.mustBe("a", 1, "")
	removed := 0
	testbed.Eventually(s, "the answer is deleted", patience, func() bool {
		n, err := s.store.Remove(s.Context(), 10)
		testbed.OK(s, err)
		removed += n
		return s.claim(claimBy("b", longLease)).Owner == "b"
	})
	if removed > 1 {
		s.Errorf("removed %d", removed)
	}
	if r := s.claim(driver.IdempotencyClaim{ID: kept, Fingerprint: "f", Owner: "b", Lease: longLease}); !r.Finished {
		s.Errorf("%+v", r)
	}
	if r := s.claim(driver.IdempotencyClaim{ID: lapsed, Fingerprint: "f", Owner: "b", Lease: longLease}); r.Attempt != 2 {
		s.Errorf("%+v", r)
	}
}

func testBadClaim(s *requestScene) {
	long := strings.Repeat("n", driver.MaxIdempotencyName+1)
	for _, id := range []driver.IdempotencyID{{}, {Operation: "op"}, {Key: "k"}, {Operation: long, Key: "k"}, {Operation: "op", Key: long},
		{Scope: long, Operation: "op", Key: "k"}, {Operation: "op", Key: "a\x00"}, {Operation: "op", Key: "\xff"}} {
		c := claimBy("a", longLease)
		c.ID = id
		_, err := s.store.Claim(s.Context(), c)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		s.mustFail(s.store.Update(s.Context(), driver.IdempotencyUpdate{ID: id, Owner: "a"}), interlock.Bug, interlock.ErrName)
	}
	for _, spoil := range []func(*driver.IdempotencyClaim){
		func(c *driver.IdempotencyClaim) { c.Owner = "" },
		func(c *driver.IdempotencyClaim) { c.Fingerprint = "" },
		func(c *driver.IdempotencyClaim) { c.Lease = 0 },
		func(c *driver.IdempotencyClaim) { c.Lease = -time.Second },
	} {
		c := claimBy("a", longLease)
		spoil(&c)
		_, err := s.store.Claim(s.Context(), c)
		s.mustFail(err, interlock.Bug, nil)
	}
	s.mustOwn(claimBy("b", longLease), 1)
}

func testRequestContext(s *requestScene) {
	ctx, cause := endedContext(s.T)
	_, err := s.store.Claim(ctx, claimBy("a", longLease))
	s.mustFail(err, interlock.Definite, cause)
	s.mustOwn(claimBy("b", longLease), 1)
	s.mustFail(s.store.Update(ctx, finishing("b", "x")), interlock.Definite, cause)
	_, err = s.store.Unfinished(ctx, driver.IdempotencyQuery{Limit: 1})
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Remove(ctx, 1)
	s.mustFail(err, interlock.Definite, cause)
	s.mustBe("b", 1, "")
}
