package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// RunFenced runs the whole suite of a driver of fenced locks, except the tests that
// need an ability in Harness.Without. Unless Without has [Alone], the calling test must not
// be parallel: it becomes so once goroutines have been counted.
func RunFenced(t *testing.T, h Harness) {
	if h.Without&Alone == 0 {
		t.Run("NoGoroutineIsLeft", func(t *testing.T) { testNoGoroutineIsLeft(t, h) })
		t.Parallel()
	}
	h.runAll(t, []suiteTest[*scene]{
		// Holders.
		{"Exclusion", 0, testExclusion},
		{"NoWait", 0, testNoWait},
		{"Names", 0, testNames},
		{"ManyNames", 0, testManyNames},
		{"Inspect", Inspection, testInspect},
		{"InspectShowsEveryGrant", Inspection, testInspectShowsEveryGrant},
		// Tokens.
		{"TokensOverHandOvers", Tokens, testTokensOverHandOvers},
		{"TokensOverRestart", Tokens | Servers, func(s *scene) { s.tokensOver(func() { s.faults.Kill(); s.faults.Restart() }) }},
		{"TokensOverWipe", Tokens | Servers, func(s *scene) { s.tokensOver(s.faults.Wipe) }},
		{"TokensStartAtTheClock", Tokens, testTokensStartAtTheClock},
		// Waiting.
		{"FIFO", FIFO, testFIFO},
		{"CancelledWaiterLeavesNothing", 0, testCancelledWaiterLeavesNothing},
		{"DeadWaiter", 0, testDeadWaiter},
		{"LostPush", LostPushes, testLostPush},
		// Releases.
		{"ReleaseIsIdempotent", 0, testReleaseIsIdempotent},
		{"ReleaseByNonHolder", 0, testReleaseByNonHolder},
		{"ReleaseAfterLossSparesTheNext", 0, testReleaseAfterLossSparesTheNext},
		// Renewals and loss.
		{"RenewalKeepsIt", 0, testRenewalKeepsIt},
		{"LeasePerRequest", 0, testLeasePerRequest},
		{"DeadlineStartsWithTheRequest", Servers | Delays | onPaths, testDeadlineStartsWithTheRequest},
		{"CrashedHolder", 0, testCrashedHolder},
		{"LossByDeletion", 0, testLossByDeletion},
		{"ServerKilled", Servers, func(s *scene) { s.outage(s.faults.Kill, s.faults.Restart) }},
		{"ServerPaused", Servers, func(s *scene) { s.outage(s.faults.Pause, s.faults.Resume) }},
		{"NetworkCut", Servers | onPaths, func(s *scene) { s.outage(s.faults.Cut, s.faults.Heal) }},
		// Lost replies.
		{"RepeatedAcquireConverges", 0, testRepeatedAcquireConverges},
		{"LostReplyToAcquire", Servers | LostReplies | onPaths, testLostReplyToAcquire},
		{"LostReplyToRelease", Servers | LostReplies | onPaths, testLostReplyToRelease},
		{"LostReleases", Servers | onPaths, testLostReleases},
		// Contexts and limits.
		{"Guarantees", 0, testGuarantees},
		{"UnmetRequirement", Tokens, testUnmetRequirement},
		{"ContextAlreadyEnded", 0, testContextAlreadyEnded},
		{"Close", 0, testClose},
		{"CloseLeavesWhatIsHeldToExpire", 0, testCloseLeavesWhatIsHeldToExpire},
	})
}

// runAll runs the tests whose abilities the harness has.
func (h Harness) runAll(t *testing.T, tests []suiteTest[*scene]) {
	runTests(t, h.Without, tests, func(t *testing.T, c suiteTest[*scene]) {
		h.run(t, c.needs.exclusive(), func(s *scene) {
			c.needs.mustHave(s.T, s.faults, s.backend)
			c.test(s)
		})
	})
}

// scene is one test with its backend.
type scene struct {
	*testing.T
	Harness
	backend Backend
	faults  Faults
	unnamed string // see named
}

func (h Harness) run(t *testing.T, exclusive bool, test func(*scene)) {
	inBubble(t, h.Bubble, func(t *testing.T) {
		b := h.Start(t, exclusive)
		test(&scene{T: t, Harness: h, backend: b, faults: b.Faults()})
	})
}

// mustHave fails a test whose harness lacks an ability that Without does not list.
func (a Ability) mustHave(t *testing.T, faults Faults, backend any) {
	t.Helper()
	_, dropsReplies := faults.(ReplyDropper)
	_, delays := faults.(Delayer)
	_, dropsPushes := backend.(PushDropper)
	for ability, present := range map[Ability]bool{
		Servers: faults != nil, LostReplies: dropsReplies, Delays: delays, LostPushes: dropsPushes,
	} {
		if a&ability != 0 && !present {
			t.Fatal("the harness lacks an ability that this test needs and Without does not list")
		}
	}
}

func (s *scene) open() driver.Fenced {
	s.Helper()
	d, err := s.backend.Open(s.T)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	return d
}

// lockName is the lock that most tests use.
const lockName = "accounts/42"

// patience bounds the time of an immediate result on a slow machine.
const patience = time.Minute

// restarted bounds the time until clients reach a restarted server again. On a busy machine
// several attempts to connect may time out.
const restarted = time.Minute

// RunAdvisory runs the tests that apply to a driver without tokens and without an
// inspectable queue. Backend.Open wraps each driver with [Advisory].
func RunAdvisory(t *testing.T, h Harness) {
	h.Without |= Tokens | Inspection
	RunFenced(t, h)
}

// Advisory adapts an advisory driver to a [Backend]. Its grants have no token.
func Advisory(d driver.Advisory) driver.Fenced { return advisory{d} }

type advisory struct{ d driver.Advisory }

func (a advisory) Guarantees() interlock.Guarantees { return a.d.Guarantees() }

func (a advisory) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	lease, err := a.d.Acquire(ctx, r)
	return driver.Grant{Lease: lease}, err
}

func (a advisory) Release(ctx context.Context, name, owner string) error {
	return a.d.Release(ctx, name, owner)
}

func (a advisory) Close(ctx context.Context) error { return a.d.Close(ctx) }

// Unwrap returns the driver that [Advisory] wrapped, or nil.
func Unwrap(d driver.Fenced) driver.Advisory {
	if a, ok := d.(advisory); ok {
		return a.d
	}
	return nil
}
