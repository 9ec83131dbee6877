package consul

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// loseTake makes d send a transaction that is lost in transit.
func (s *scene) loseTake(d *Driver, w *wire, name, owner string) {
	s.Helper()
	gone := w.loseNext(`"Verb":"lock","Key":"` + layout{s.prefix}.lock(name) + `"`)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Name: name, Owner: owner})
		done <- err
	}()
	testbed.Receive(s, gone, "the transaction")
	cancel()
	if err := testbed.Receive(s, done, "acquire"); interlock.Kind(err) != interlock.Uncertain {
		s.Fatalf("a lost transaction: %v", err)
	}
}

// mustRefuse delivers the lost request, which must have no effect.
func (s *scene) mustRefuse(w *wire) {
	s.Helper()
	if got := w.deliver(s); got != http.StatusConflict {
		s.Fatalf("the late transaction was answered %d", got)
	}
}

// testLateTakeAfterARelease: its lock would not be released.
func testLateTakeAfterARelease(s *scene) {
	d, w := s.open(Options{})
	s.loseTake(d, w, "n", "o")
	s.release(d, "n", "o")
	s.mustRefuse(w)
	s.mustBeFree("n")
	s.acquire(d, "n", "next")
	s.release(d, "n", "next")
}

// testLateTakeAfterAGrant to the same owner, which repeated it and has released.
func testLateTakeAfterAGrant(s *scene) {
	d, w := s.open(Options{})
	s.loseTake(d, w, "n", "o")
	s.acquire(d, "n", "o")
	s.mustRefuse(w)
	s.release(d, "n", "o")
	s.mustRefuse(w)
	s.mustBeFree("n")
}

// testLateTakeAfterARefusal: who is refused does not release.
func testLateTakeAfterARefusal(s *scene) {
	d, w := s.open(Options{})
	other, _ := s.open(Options{})
	s.loseTake(d, w, "n", "o")
	s.acquire(other, "n", "holder")
	if err := s.try(d, "n", "o"); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("got %v", err)
	}
	s.release(other, "n", "holder")
	s.mustRefuse(w)
	s.mustBeFree("n")
}

// testLateReleaseSparesTheNext holder, of the same session.
func testLateReleaseSparesTheNext(s *scene) {
	d, w := s.open(Options{})
	s.acquire(d, "n", "o")
	gone := w.loseNext(`"delete-cas"`)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Release(ctx, "n", "o") }()
	testbed.Receive(s, gone, "the release")
	cancel()
	if err := testbed.Receive(s, done, "release"); interlock.Kind(err) != interlock.Uncertain {
		s.Fatalf("a lost release: %v", err)
	}
	s.release(d, "n", "o")
	s.acquire(d, "n", "next")
	s.mustRefuse(w)
	if e := s.key("n"); holderOf(e) != "next" {
		s.Fatalf("the key is %+v", e)
	}
}

// testReleaseEndsAnAcquire whose transaction is in transit.
func testReleaseEndsAnAcquire(s *scene) {
	d, w := s.open(Options{})
	gone := w.loseNext(`"Verb":"lock"`)
	done := drivertest.Begin(s, d, drivertest.Ask("n", "o"))
	testbed.Receive(s, gone, "the transaction")
	s.release(d, "n", "o")
	if o := testbed.Receive(s, done, "acquire"); !errors.Is(o.Err, interlock.ErrReleased) {
		s.Fatalf("got %v", o.Err)
	}
	s.mustRefuse(w)
	s.mustBeFree("n")
}

// testContendersOfOneProcess share a session, and Consul grants a lock to its session
// repeatedly.
func testContendersOfOneProcess(s *scene) {
	d, _ := s.open(Options{})
	s.acquire(d, "n", "first")
	var held *interlock.HeldError
	if err := s.try(d, "n", "second"); !errors.As(err, &held) || held.Owner != "first" {
		s.Fatalf("got %v", err)
	}
	waiters := map[string]<-chan drivertest.Outcome{"third": s.queue(d, "n", "third"), "fourth": s.queue(d, "n", "fourth")}
	s.release(d, "n", "first")
	for range 2 {
		testbed.Eventually(s, "the next one holds", patience, func() bool { return len(waiters["third"])+len(waiters["fourth"]) > 0 })
		owner := holderOf(s.key("n"))
		testbed.Receive(s, waiters[owner], owner)
		if len(waiters["third"])+len(waiters["fourth"]) > 0 {
			s.Fatal("two hold")
		}
		s.release(d, "n", owner)
	}
	s.mustBeFree("n")
}

// testOwnerOverTwoSessions: an owner's key under a session that expired here, and remains
// in Consul, is deleted when the owner acquires again.
func testOwnerOverTwoSessions(s *scene) {
	d, w := s.open(Options{TTL: time.Hour}) // it does not end by itself
	d.client.short.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Path, "/session/destroy/") {
			return nil, errors.New("not sent")
		}
		return w.RoundTrip(r)
	})
	first := s.acquire(d, "n", "o")
	old := d.session
	old.end(errTimeRanOut)
	if first.Lease.Remaining() > 0 {
		s.Fatal("a claim outlives its session")
	}
	second := s.acquire(d, "n", "o")
	if d.session == old || second.Token <= first.Token {
		s.Fatalf("token %d after %d, same session %v", second.Token, first.Token, d.session == old)
	}
	s.release(d, "n", "o")
	s.mustBeFree("n")
}

// lossOf acquires and returns a channel that receives the loss.
func (s *scene) lossOf(d *Driver, name, owner string) <-chan error {
	s.Helper()
	c := drivertest.Ask(name, owner)
	drivertest.Acquire(s, d, c)
	return c.Lost
}

// testRunOutSessionIsDestroyed: Consul would keep its locks for up to another TTL.
func testRunOutSessionIsDestroyed(s *scene) {
	d, _ := s.open(Options{TTL: time.Hour})
	other, _ := s.open(Options{TTL: time.Hour})
	s.acquire(d, "n", "o")
	granted := s.queue(other, "n", "next")
	d.session.end(errTimeRanOut)
	testbed.OK(s, testbed.Receive(s, granted, "the waiter").Err)
	s.release(d, "n", "o")
	s.release(other, "n", "next")
}

// testSessionDestroyed by an operator: the loss is reported to every holder, and the next
// Acquire opens another session.
func testSessionDestroyed(s *scene) {
	d, _ := s.open(Options{TTL: suiteTTL})
	a, b := s.lossOf(d, "a", "o"), s.lossOf(d, "b", "o")
	testbed.OK(s, s.operator.destroySession(s.Context(), d.session.id))
	for _, lost := range []<-chan error{a, b} {
		if err := testbed.Receive(s, lost, "the loss"); !errors.Is(err, interlock.ErrSessionEnded) {
			s.Fatalf("cause %v", err)
		}
	}
	s.release(d, "a", "o")
	s.acquire(d, "a", "next")
}

// testFenceDeleted with all other keys of the namespace, as "consul kv delete -recurse" does.
func testFenceDeleted(s *scene) {
	d, _ := s.open(Options{TTL: suiteTTL})
	first := s.acquire(d, "a", "o")
	lost := s.lossOf(d, "b", "o")
	s.operate(op{Verb: "delete-tree", Key: "suite" + s.prefix[len("suite"):len(s.prefix)-1]})
	if err := testbed.Receive(s, lost, "the loss"); !errors.Is(err, interlock.ErrSessionEnded) {
		s.Fatalf("cause %v", err)
	}
	s.release(d, "a", "o")
	if next := s.acquire(d, "a", "next"); next.Token <= first.Token {
		s.Fatalf("token %d after %d", next.Token, first.Token)
	}
}

// testKeyDeletedAndTaken by another owner of the process: Consul shows the same session, and the former
// holder has lost the lock.
func testKeyDeletedAndTaken(s *scene) {
	d, _ := s.open(Options{TTL: time.Hour})
	lost := s.lossOf(d, "n", "former")
	s.operate(op{Verb: "delete", Key: layout{s.prefix}.lock("n")})
	next := drivertest.Ask("n", "next")
	grant := drivertest.Acquire(s, d, next)
	d.session.renew()
	if len(lost) != 1 {
		s.Error("the former holder was not told")
	} else if err := <-lost; !errors.Is(err, interlock.ErrLost) {
		s.Errorf("cause %v", err)
	}
	s.release(d, "n", "former")
	if e := s.key("n"); holderOf(e) != "next" || grant.Lease.Remaining() <= 0 || len(next.Lost) > 0 {
		s.Errorf("the key is %+v, %v remain", e, grant.Lease.Remaining())
	}
	s.release(d, "n", "next")
	s.mustBeFree("n")
}

// testValueReplaced by an operator, which leaves the session: a release frees it.
func testValueReplaced(s *scene) {
	d, _ := s.open(Options{})
	s.acquire(d, "n", "o")
	s.operate(op{Verb: "set", Key: layout{s.prefix}.lock("n"), Value: []byte("x")})
	if e := s.key("n"); e.Session != d.session.id {
		s.Fatalf("the key is %+v", e)
	}
	s.release(d, "n", "o")
	s.mustBeFree("n")
}

// testLockDelay: the lock is not granted before its end.
func testLockDelay(s *scene) {
	const delay = 2 * time.Second
	d, _ := s.open(Options{TTL: suiteTTL, LockDelay: delay})
	other, _ := s.open(Options{TTL: suiteTTL})
	first := s.acquire(d, "n", "o")
	began := time.Now()
	testbed.OK(s, s.operator.destroySession(s.Context(), d.session.id))
	if err := s.try(other, "n", "impatient"); !errors.Is(err, interlock.ErrHeld) && time.Since(began) < delay {
		s.Fatalf("during the lock-delay: %v", err)
	}
	s.release(other, "n", "impatient")
	next := s.acquire(other, "n", "next")
	if took := time.Since(began); took < delay || next.Token <= first.Token {
		s.Fatalf("token %d after %d, after %v", next.Token, first.Token, took)
	}
}

// testOtherKeysAreLeftAlone: neither taken nor changed.
func testOtherKeysAreLeftAlone(s *scene) {
	d, _ := s.open(Options{})
	key := layout{s.prefix}.lock("n")
	for _, flags := range []uint64{0, 0xe0f69a2baa414de0} {
		before := s.operate(op{Verb: "set", Key: key, Value: []byte("data"), Flags: flags})[0]
		var conflict *ConflictError
		if err := s.try(d, "n", "o"); !errors.As(err, &conflict) || conflict.Flags != flags || interlock.Kind(err) != interlock.Definite {
			s.Fatalf("flags %#x: %v", flags, err)
		}
		if e := s.key("n"); e.ModifyIndex != before.ModifyIndex {
			s.Fatalf("the key is %+v", e)
		}
		s.operate(op{Verb: "delete", Key: key})
	}
	s.operate(op{Verb: "set", Key: key, Flags: lockFlag}) // a released lock
	s.acquire(d, "n", "o")
}

// testReleasedLockOfAnother client, which left the key: the token is that of the grant, which
// others see, and a release is one request.
func testReleasedLockOfAnother(s *scene) {
	d, w := s.open(Options{})
	s.operate(op{Verb: "set", Key: layout{s.prefix}.lock("n"), Flags: lockFlag})
	g := s.acquire(d, "n", "o")
	state, err := d.Lock(s.Context(), "n")
	if err != nil || state.Holder == nil || state.Holder.Token != g.Token {
		s.Errorf("token %d, others see %+v: %v", g.Token, state.Holder, err)
	}
	before := w.count()
	s.release(d, "n", "o")
	if n := w.count() - before; n != 1 {
		s.Errorf("a release cost %d requests", n)
	}
}
