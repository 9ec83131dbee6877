package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// OnceHarness gives [RunOnce] access to one driver.Once and its store.
type OnceHarness = StoreHarness[driver.Once]

// RunOnce runs the conformance suite of driver.Once.
func RunOnce(t *testing.T, h OnceHarness) {
	runStore(t, h, func(s *storeScene[driver.Once]) *onceScene { return &onceScene{storeScene: s} }, []suiteTest[*onceScene]{
		{"OnceIsDone", 0, testOnceIsDone},
		{"OnceClaimIsHeld", 0, testOnceClaimIsHeld},
		{"OnceForget", 0, testOnceForget},
		{"OnceLeaseEnds", 0, testOnceLeaseEnds},
		{"OnceDoneAfterTheLease", 0, testOnceDoneAfterTheLease},
		{"OnceRecordEnds", 0, testOnceRecordEnds},
		{"OnceOtherPayload", 0, testOnceOtherPayload},
		{"OnceNamesAreData", 0, testOnceNamesAreData},
		{"OnceBadInput", 0, testOnceBadInput},
		{"OnceCompetition", 0, testOnceCompetition},
		{"OnceContextAlreadyEnded", 0, testOnceContextAlreadyEnded},
		{"LostReplyToOnceClaim", Servers | LostReplies | onPaths, testLostReplyToOnceClaim},
		{"LostReplyToOnceDone", Servers | LostReplies | onPaths, testLostReplyToOnceDone},
		{"OnceOverARestart", Servers | Durable, testOnceOverARestart},
	})
}

// onceScene is one test with its store and a first opening of it.
type onceScene struct {
	*storeScene[driver.Once]
}

// delivery returns a delivery to owner of the message that most tests use.
func delivery(owner string) driver.Delivery {
	return driver.Delivery{Consumer: "billing", ID: "m1", Hash: bytes.Repeat([]byte("\x00h"), 16), Owner: owner}
}

const onceLong = time.Hour

func (s *onceScene) claim(d driver.Delivery, lease time.Duration, want driver.Claimed) {
	s.Helper()
	if got, err := s.store.Claim(s.Context(), d, lease); err != nil || got != want {
		s.Fatalf("claim of %q by %q: %v, %v, want %v", d.ID, d.Owner, got, err, want)
	}
}

func (s *onceScene) mustBeHeld(d driver.Delivery, by string) {
	s.Helper()
	got, err := s.store.Claim(s.Context(), d, onceLong)
	if held, found := errors.AsType[*interlock.HeldError](err); !found || held.Owner != by || interlock.Kind(err) != interlock.Retryable || got != driver.Unclaimed {
		s.Fatalf("claim by %q: %v, %v, want that %q has it", d.Owner, got, err, by)
	}
}

func (s *onceScene) done(d driver.Delivery, keep time.Duration) {
	s.Helper()
	if err := s.store.Done(s.Context(), d, keep); err != nil {
		s.Fatalf("done by %q: %v", d.Owner, err)
	}
}

func (s *onceScene) forget(d driver.Delivery) {
	s.Helper()
	if err := s.store.Forget(s.Context(), d); err != nil {
		s.Fatalf("forget by %q: %v", d.Owner, err)
	}
}

// comes waits until a claim of d returns want.
func (s *onceScene) comes(d driver.Delivery, want driver.Claimed) {
	s.Helper()
	testbed.Eventually(s, fmt.Sprintf("a claim by %q returns %v", d.Owner, want), patience, func() bool {
		got, err := s.store.Claim(s.Context(), d, onceLong)
		return err == nil && got == want
	})
}

func testOnceIsDone(s *onceScene) {
	a, b := delivery("a"), delivery("b")
	s.claim(a, onceLong, driver.ClaimedNow)
	s.done(a, onceLong)
	for _, d := range []driver.Delivery{a, b} {
		s.claim(d, onceLong, driver.ClaimedDone)
	}
	s.done(a, onceLong) // again
	s.forget(a)         // too late
	s.claim(b, onceLong, driver.ClaimedDone)
	s.mustFail(s.store.Done(s.Context(), b, onceLong), interlock.Definite, interlock.ErrLost)
}

func testOnceClaimIsHeld(s *onceScene) {
	a, b := delivery("a"), delivery("b")
	s.claim(a, onceLong, driver.ClaimedNow)
	s.mustBeHeld(b, "a")
	s.claim(a, onceLong, driver.ClaimedNow) // again
	s.store = s.open()
	s.mustBeHeld(b, "a")
	s.mustFail(s.store.Done(s.Context(), b, onceLong), interlock.Definite, interlock.ErrLost)
	s.mustBeHeld(b, "a")
	s.done(a, onceLong)
	s.claim(b, onceLong, driver.ClaimedDone)
}

func testOnceForget(s *onceScene) {
	a, b := delivery("a"), delivery("b")
	s.forget(a) // no record exists
	s.claim(a, onceLong, driver.ClaimedNow)
	s.forget(b) // another owner has it
	s.mustBeHeld(b, "a")
	s.forget(a)
	s.claim(b, onceLong, driver.ClaimedNow)
	s.forget(a)
	s.mustBeHeld(a, "b")
}

// onceShort is a lease, or the life of a record, that ends during a test.
const onceShort = 300 * time.Millisecond

// comesAfter is comes, and requires that onceShort has passed since begun.
func (s *onceScene) comesAfter(begun time.Time, d driver.Delivery, want driver.Claimed) {
	s.Helper()
	s.comes(d, want)
	if took := time.Since(begun); took < onceShort*9/10 { // the clock may be another one
		s.Fatalf("a claim by %q returns %v after %v of %v", d.Owner, want, took, onceShort)
	}
}

func testOnceLeaseEnds(s *onceScene) {
	a, b := delivery("a"), delivery("b")
	begun := time.Now()
	s.claim(a, onceShort, driver.ClaimedNow)
	s.comesAfter(begun, b, driver.ClaimedNow)
	s.mustBeHeld(a, "b")
	s.mustFail(s.store.Done(s.Context(), a, onceLong), interlock.Definite, interlock.ErrLost)
	s.forget(a)
	s.mustBeHeld(a, "b")
	s.done(b, onceLong)
	s.mustFail(s.store.Done(s.Context(), a, onceLong), interlock.Definite, interlock.ErrLost)
	s.claim(a, onceLong, driver.ClaimedDone)
}

// testOnceDoneAfterTheLease: the effect is made, and no other owner has begun.
func testOnceDoneAfterTheLease(s *onceScene) {
	a, b := delivery("a"), delivery("b")
	s.claim(a, time.Millisecond, driver.ClaimedNow)
	time.Sleep(20 * time.Millisecond) // the lease has expired, which no call shows
	s.done(a, onceLong)
	s.claim(b, onceLong, driver.ClaimedDone)
}

func testOnceRecordEnds(s *onceScene) {
	a, b := delivery("a"), delivery("b")
	s.claim(a, onceLong, driver.ClaimedNow)
	begun := time.Now()
	s.done(a, onceShort)
	s.comesAfter(begun, b, driver.ClaimedNow)
}

func testOnceOtherPayload(s *onceScene) {
	a, b, other := delivery("a"), delivery("b"), delivery("a")
	other.Hash = bytes.Repeat([]byte("\x00i"), 16)
	s.claim(a, onceLong, driver.ClaimedNow)
	s.claim(other, onceLong, driver.ClaimedOther)
	s.mustBeHeld(b, "a")
	s.done(a, onceLong)
	s.claim(other, onceLong, driver.ClaimedOther)
	s.claim(b, onceLong, driver.ClaimedDone)
}

// testOnceNamesAreData checks that each pair of consumer and message is separate and
// not confused with another.
func testOnceNamesAreData(s *onceScene) {
	names := append([]string{"1:a", "a:b", "b:a:b"}, oddNames...) // a and b:a:b are not a:b and a:b
	all := map[[2]string]bool{}
	for i, name := range names {
		for _, pair := range [][2]string{{name, "a:b"}, {"a", name}, {name, name}} {
			d := driver.Delivery{Consumer: pair[0], ID: pair[1], Hash: delivery("").Hash, Owner: "owner"}
			if all[pair] || d.Check() != nil {
				continue
			}
			all[pair] = true
			s.claim(d, onceLong, driver.ClaimedNow)
			s.done(d, onceLong)
		}
		if d := delivery(name); d.Check() == nil { // owners are data too
			d.ID = fmt.Sprint("of owner ", i)
			s.claim(d, onceLong, driver.ClaimedNow)
			other := d
			other.Owner = "another"
			s.mustBeHeld(other, name)
		}
	}
	if len(all) < 2*len(oddNames) {
		s.Fatalf("only %d pairs are allowed", len(all))
	}
}

func testOnceBadInput(s *onceScene) {
	for _, bad := range []string{"", strings.Repeat("x", 256)} {
		for _, change := range []func(*driver.Delivery){
			func(d *driver.Delivery) { d.Consumer = bad }, func(d *driver.Delivery) { d.ID = bad }, func(d *driver.Delivery) { d.Owner = bad },
		} {
			d := delivery("a")
			change(&d)
			s.mustRefuse(d, onceLong, interlock.ErrName)
		}
	}
	d := delivery("a")
	d.Hash = []byte("short")
	s.mustRefuse(d, onceLong, nil)
	for _, keep := range []time.Duration{0, -1, time.Microsecond, driver.MaxKeep + 1} {
		d := delivery("a")
		_, err := s.store.Claim(s.Context(), d, keep)
		s.mustFail(err, interlock.Bug, nil)
		s.mustFail(s.store.Done(s.Context(), d, keep), interlock.Bug, nil)
	}
	s.claim(delivery("a"), driver.MaxKeep, driver.ClaimedNow) // the earlier calls had no effect
}

func (s *onceScene) mustRefuse(d driver.Delivery, keep time.Duration, target error) {
	s.Helper()
	_, err := s.store.Claim(s.Context(), d, keep)
	s.mustFail(err, interlock.Bug, target)
	s.mustFail(s.store.Done(s.Context(), d, keep), interlock.Bug, target)
	s.mustFail(s.store.Forget(s.Context(), d), interlock.Bug, target)
}

// testOnceCompetition checks that exactly one of many concurrent claims succeeds.
func testOnceCompetition(s *onceScene) {
	for round := range 20 {
		won := make(chan driver.Delivery, 16)
		s.atOnce(cap(won), func(n int, store driver.Once) error {
			d := delivery(fmt.Sprint("owner ", n))
			d.ID = fmt.Sprint("m", round)
			got, err := store.Claim(s.Context(), d, onceLong)
			if got == driver.ClaimedNow {
				won <- d
			} else if !errors.Is(err, interlock.ErrHeld) {
				return fmt.Errorf("%v, %v", got, err)
			}
			return nil
		})
		if len(won) != 1 {
			s.Fatalf("%d have claimed one message", len(won))
		}
		s.done(<-won, onceLong)
	}
}

func testOnceContextAlreadyEnded(s *onceScene) {
	ctx, cause := endedContext(s.T)
	_, err := s.store.Claim(ctx, delivery("a"), onceLong)
	s.mustFail(err, interlock.Definite, cause)
	s.mustFail(s.store.Done(ctx, delivery("a"), onceLong), interlock.Definite, cause)
	s.mustFail(s.store.Forget(ctx, delivery("a")), interlock.Definite, cause)
	s.claim(delivery("b"), onceLong, driver.ClaimedNow)
}

// warm opens the connection and makes each request once: a store may need more than
// one answer to the first request of a kind.
func (s *onceScene) warm() {
	s.Helper()
	d := delivery("a")
	d.ID = "another"
	s.claim(d, onceLong, driver.ClaimedNow)
	s.done(d, onceLong)
}

// testLostReplyToOnceClaim checks that the outcome is unknown, the owner may ask again,
// and no other owner gets the claim.
func testLostReplyToOnceClaim(s *onceScene) {
	s.warm()
	s.loseReply(func(ctx context.Context) error {
		_, err := s.store.Claim(ctx, delivery("a"), onceLong)
		return err
	})
	s.store = s.open()
	s.mustBeHeld(delivery("b"), "a")
	s.claim(delivery("a"), onceLong, driver.ClaimedNow)
}

func testLostReplyToOnceDone(s *onceScene) {
	s.warm()
	s.claim(delivery("a"), onceLong, driver.ClaimedNow)
	s.loseReply(func(ctx context.Context) error { return s.store.Done(ctx, delivery("a"), onceLong) })
	s.store = s.open()
	s.claim(delivery("b"), onceLong, driver.ClaimedDone)
	s.done(delivery("a"), onceLong)
}

// testOnceOverARestart checks that a durable server keeps all records when its process
// is killed.
func testOnceOverARestart(s *onceScene) {
	held := delivery("a")
	held.ID = "m2"
	s.claim(delivery("a"), onceLong, driver.ClaimedNow)
	s.done(delivery("a"), onceLong)
	s.claim(held, onceLong, driver.ClaimedNow)
	s.restartAround(func(ctx context.Context) error {
		_, err := s.store.Claim(ctx, delivery("b"), onceLong)
		return err
	})
	s.comes(delivery("b"), driver.ClaimedDone)
	held.Owner = "b"
	s.mustBeHeld(held, "a")
}
