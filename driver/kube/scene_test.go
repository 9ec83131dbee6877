package kube

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestDriver runs the driver's own tests with one API server, each in its own
// namespace.
func TestDriver(t *testing.T) {
	shared := sharedServer(t)
	for name, test := range map[string]func(*scene){
		"UncontendedCostsTwoRequests":     testUncontendedCostsTwoRequests,
		"FirstContactCostsALittleMore":    testFirstContactCosts,
		"HeldLocksHaveNoGoroutines":       testHeldLocksHaveNoGoroutines,
		"RefusalCostsOneRequest":          testRefusalCostsOneRequest,
		"WaitersCostNoRequests":           testWaitersCostNoRequests,
		"HandOverIsPushed":                testHandOverIsPushed,
		"LegacyLocksAreRefused":           testLegacyLocksAreRefused,
		"LeasesAloneSuffice":              testLeasesAloneSuffice,
		"NoRights":                        testNoRights,
		"OldServerIsRefused":              testOldServerIsRefused,
		"NoNamespace":                     testNoNamespace,
		"ConflictOfAQuota":                testConflictOfAQuota,
		"AnnotationsRemoved":              testAnnotationsRemoved,
		"TokensOverDeletionBehindOurBack": testTokensOverDeletion,
		"BasesOutOfTheQuestion":           testBasesOutOfTheQuestion,
		"TokenIsFixedForTheTerm":          testTokenIsFixedForTheTerm,
		"AnOldBaseIsRaised":               testOldBase,
		"LateTakeCannotFollowARelease":    testLateTake,
		"LateCreateCannotFollowARelease":  testLateCreate,
		"LateCreateAfterADeletion":        testLateCreateAfterADeletion,
		"ReleaseOvertakesATake":           testReleaseOvertakesATake,
		"ReleaseEndsAWait":                testReleaseEndsAWait,
		"CoordinatedElectionIsLeftAlone":  testCoordinatedElection,
		"RenewalsShowInWholeSeconds":      testRenewalsShowInWholeSeconds,
		"OthersMetadataIsKept":            testOthersMetadataIsKept,
		"LossIsToldAtOnce":                testLossIsToldAtOnce,
		"Election":                        testElection,
		"Seed":                            testSeed,
		"RepairKeepsTheTokenOfATerm":      testRepairKeepsTheToken,
		"ClockGoesWrong":                  testClockGoesWrong,
		"ClockOfTheServerCounts":          testClockOfTheServer,
		"ReadsLeaveNothing":               testReadsLeaveNothing,
		"SweepIsBounded":                  testSweepIsBounded,
		"SweepSparesWhatIsNeeded":         testSweepSpares,
		"TokensOverASweep":                testTokensOverASweep,
		"ServerClockJumps":                testServerClockJumps,
		"AdvisoryBesideFenced":            testAdvisoryBesideFenced,
		"AdvisoryIsSwept":                 testAdvisoryIsSwept,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, shared)
			test(&scene{T: t, system: b, leases: &counted{}})
		})
	}
}

// scene is one namespace, and requests that are counted and can be held back.
type scene struct {
	*testing.T
	*system
	leases *counted
}

// counted counts requests, except those of the watch, and may replace them.
type counted struct {
	n       atomic.Int64
	mu      sync.Mutex
	instead func(*http.Request, http.RoundTripper) (*http.Response, error) // nil: sent unchanged
}

func (c *counted) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") == "" {
			c.n.Add(1)
		}
		c.mu.Lock()
		instead := c.instead
		c.mu.Unlock()
		if instead != nil {
			return instead(r, next)
		}
		return next.RoundTrip(r)
	})
}

func (c *counted) replace(by func(*http.Request, http.RoundTripper) (*http.Response, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instead = by
}

// config reaches the server without a proxy, and is counted.
func (s *scene) config() *rest.Config {
	config := configFor(s.kube, s.kube.Addr())
	config.Wrap(s.leases.wrap)
	return config
}

func (s *scene) open(o Options) *Driver { return s.openWith(s.config(), o) }

func (s *scene) openWith(config *rest.Config, o Options) *Driver {
	s.Helper()
	o.Namespace = s.namespace
	d, err := Open(s.Context(), config, &o)
	testbed.OK(s, err)
	testbed.CloseAfter(s, d)
	return d
}

func (s *scene) acquire(d *Driver, name, owner string) driver.Grant {
	s.Helper()
	return drivertest.Acquire(s, d, drivertest.Ask(name, owner))
}

func (s *scene) release(d *Driver, name, owner string) {
	s.Helper()
	drivertest.Release(s, d, drivertest.Ask(name, owner))
}

func (s *scene) lease(name string) *coordination.Lease {
	s.Helper()
	l, err := s.operator.CoordinationV1().Leases(s.namespace).Get(s.Context(), name, metav1.GetOptions{})
	testbed.OK(s, err)
	return l
}

// edit changes a Lease like an operator.
func (s *scene) edit(name string, change func(*coordination.Lease)) {
	s.Helper()
	testbed.Eventually(s, "an operator's edit is not overtaken", patience, func() bool {
		l := s.lease(name)
		change(l)
		_, err := s.operator.CoordinationV1().Leases(s.namespace).Update(s.Context(), l, metav1.UpdateOptions{})
		return err == nil
	})
}

func (s *scene) remove(name string) {
	s.Helper()
	testbed.OK(s, s.operator.CoordinationV1().Leases(s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{}))
}

// sees waits until d's view of a Lease satisfies fits.
func (s *scene) sees(d *Driver, name, what string, fits func(sight) bool) {
	s.Helper()
	testbed.Eventually(s, what, patience, func() bool { return fits(d.look(name)) })
}

// queue acquires in the background and returns when it waits.
func (s *scene) queue(d *Driver, name, owner string) <-chan drivertest.Outcome {
	s.Helper()
	return drivertest.Wait(s, d, drivertest.Ask(name, owner))
}
