package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestDriver runs the driver's own tests with one server, each under its own prefix.
func TestDriver(t *testing.T) {
	shared := testbed.Shared(t, testbed.Consul)
	for name, test := range map[string]func(*scene){
		"UncontendedCostsTwoRequests": testUncontendedCostsTwoRequests,
		"RefusalCostsTwoRequests":     testRefusalCostsTwoRequests,
		"WaitersCostNoRequests":       testWaitersCostNoRequests,
		"HeldLocksCostOneForSixty":    testHeldLocksCostOneForSixty,
		"HandOverIsPushed":            testHandOverIsPushed,
		"LateTakeAfterARelease":       testLateTakeAfterARelease,
		"LateTakeAfterAGrant":         testLateTakeAfterAGrant,
		"LateTakeAfterARefusal":       testLateTakeAfterARefusal,
		"LateReleaseSparesTheNext":    testLateReleaseSparesTheNext,
		"ReleaseEndsAnAcquire":        testReleaseEndsAnAcquire,
		"ContendersOfOneProcess":      testContendersOfOneProcess,
		"OwnerOverTwoSessions":        testOwnerOverTwoSessions,
		"SessionDestroyed":            testSessionDestroyed,
		"RunOutSessionIsDestroyed":    testRunOutSessionIsDestroyed,
		"FenceDeleted":                testFenceDeleted,
		"KeyDeletedAndTaken":          testKeyDeletedAndTaken,
		"ValueReplaced":               testValueReplaced,
		"LockDelay":                   testLockDelay,
		"OtherKeysAreLeftAlone":       testOtherKeysAreLeftAlone,
		"ReleasedLockOfAnother":       testReleasedLockOfAnother,
		"BaseDeletedOrLowered":        testBaseDeletedOrLowered,
		"BaseFollowsTheClock":         testBaseFollowsTheClock,
		"ClockAhead":                  testClockAhead,
		"Seed":                        testSeed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&scene{T: t, system: start(t, shared), server: shared})
		})
	}
}

const patience = testbed.Patience

// scene is one prefix on a server.
type scene struct {
	*testing.T
	*system
	server *testbed.Server
}

// open opens a driver whose requests are counted.
func (s *scene) open(o Options) (*Driver, *wire) {
	s.Helper()
	d, w, err := s.tryOpen(o)
	testbed.OK(s, err)
	return d, w
}

func (s *scene) tryOpen(o Options) (*Driver, *wire, error) {
	w := &wire{transport: &http.Transport{}}
	s.Cleanup(w.transport.CloseIdleConnections)
	o.Address, o.Prefix, o.Transport = s.server.Addr(), s.prefix, w
	d, err := Open(s.Context(), &o)
	if err == nil {
		testbed.CloseAfter(s, d)
	}
	return d, w, err
}

// wire counts requests, and may lose one before it is sent.
type wire struct {
	transport *http.Transport
	mu        sync.Mutex
	n         int // except renewals
	lose      string
	lost      *http.Request
	losing    chan struct{} // closed when a request was lost; nil while none is to be lost
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body := bodyOf(r)
	w.mu.Lock()
	if !strings.Contains(r.URL.Path, "/session/renew/") && !strings.Contains(body, `"check-session"`) {
		w.n++
	}
	if w.losing != nil && strings.Contains(body, w.lose) {
		w.lost = r.Clone(context.Background())
		close(w.losing)
		w.losing = nil
		w.mu.Unlock()
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	w.mu.Unlock()
	return w.transport.RoundTrip(r)
}

func bodyOf(r *http.Request) string {
	if r.GetBody == nil {
		return ""
	}
	body, err := r.GetBody()
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(body)
	return string(text)
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// loseNext holds back the next request whose body contains text, and then closes the channel.
func (w *wire) loseNext(text string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose, w.losing = text, make(chan struct{})
	return w.losing
}

// deliver sends the held request, and returns the status of its answer.
func (w *wire) deliver(t testing.TB) int {
	t.Helper()
	r, err := http.NewRequest(w.lost.Method, w.lost.URL.String(), bytes.NewReader([]byte(bodyOf(w.lost))))
	testbed.OK(t, err)
	answer, err := w.transport.RoundTrip(r)
	testbed.OK(t, err)
	answer.Body.Close()
	return answer.StatusCode
}

func (s *scene) acquire(d *Driver, name, owner string) driver.Grant {
	s.Helper()
	return drivertest.Acquire(s, d, drivertest.Ask(name, owner))
}

func (s *scene) release(d *Driver, name, owner string) {
	s.Helper()
	drivertest.Release(s, d, drivertest.Ask(name, owner))
}

// try acquires without waiting.
func (s *scene) try(d *Driver, name, owner string) error {
	_, err := d.Acquire(s.Context(), driver.Request{Name: name, Owner: owner, NoWait: true})
	return err
}

// queue acquires in the background and returns when it waits.
func (s *scene) queue(d *Driver, name, owner string) <-chan drivertest.Outcome {
	s.Helper()
	return drivertest.Wait(s, d, drivertest.Ask(name, owner))
}

// operate changes keys like an operator.
func (s *scene) operate(ops ...op) []entry {
	s.Helper()
	entries, err := s.operator.txn(s.Context(), ops...)
	testbed.OK(s, err)
	return entries
}

func (s *scene) key(name string) entry {
	s.Helper()
	e, _, err := s.operator.get(s.Context(), layout{s.prefix}.lock(name))
	testbed.OK(s, err)
	return e
}

func (s *scene) mustBeFree(name string) {
	s.Helper()
	if e := s.key(name); e.exists() {
		s.Fatalf("the key of %q is left: %+v", name, e)
	}
}

// testUncontendedCostsTwoRequests, token included.
func testUncontendedCostsTwoRequests(s *scene) {
	d, w := s.open(Options{})
	before := w.count()
	const rounds = 50
	for i := range rounds {
		s.acquire(d, "n", fmt.Sprint(i))
		s.release(d, "n", fmt.Sprint(i))
	}
	if got := w.count() - before; got != 2*rounds {
		s.Fatalf("%d requests for %d acquires and releases", got, rounds)
	}
}

// testRefusalCostsTwoRequests: the transaction, and a read of the holder.
func testRefusalCostsTwoRequests(s *scene) {
	holder, _ := s.open(Options{})
	d, w := s.open(Options{})
	s.acquire(holder, "n", "holder")
	before := w.count()
	var held *interlock.HeldError
	if err := s.try(d, "n", "other"); !errors.As(err, &held) || held.Owner != "holder" {
		s.Fatalf("got %v", err)
	}
	if got := w.count() - before; got != 2 {
		s.Fatalf("%d requests", got)
	}
}

// testWaitersCostNoRequests for changes of other names.
func testWaitersCostNoRequests(s *scene) {
	holder, _ := s.open(Options{})
	d, w := s.open(Options{TTL: 24 * time.Hour})
	d.pace.quiet = time.Hour // a busy machine makes the changes slowly
	s.acquire(holder, "n", "holder")
	before := w.count()
	s.queue(d, "n", "waiter")
	for i := range 50 {
		s.acquire(holder, "other", fmt.Sprint(i))
		s.release(holder, "other", fmt.Sprint(i))
	}
	if got := w.count() - before; got > 3 { // a transaction, a read, a blocking query
		s.Fatalf("a waiter cost %d requests", got)
	}
}

// testHeldLocksCostOneForSixty: one request with each renewal, which is one more.
func testHeldLocksCostOneForSixty(s *scene) {
	d, w := s.open(Options{TTL: time.Hour})
	const held = 2*batch + 1
	for i := range held {
		s.acquire(d, fmt.Sprint("n", i), "holder")
	}
	checks := make(chan struct{}, 100)
	d.client.short.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		checks <- struct{}{}
		return w.RoundTrip(r)
	})
	d.session.renew()
	if got := len(checks); got != 4 {
		s.Fatalf("%d requests to renew %d locks", got, held)
	}
}

// testHandOverIsPushed: long before the next poll.
func testHandOverIsPushed(s *scene) {
	holder, _ := s.open(Options{})
	d, w := s.open(Options{TTL: 24 * time.Hour})
	d.pace.quiet = time.Hour
	first := s.acquire(holder, "n", "holder")
	before := w.count()
	granted := s.queue(d, "n", "waiter")
	s.release(holder, "n", "holder")
	if next := testbed.Receive(s, granted, "the waiter"); next.Token <= first.Token {
		s.Fatalf("token %d after %d", next.Token, first.Token)
	}
	if got := w.count() - before; got > 4 {
		s.Fatalf("waiting and the hand-over cost %d requests", got)
	}
}
