package redis

import (
	"testing"

	"github.com/interlock-dev/interlock/driver/drivertest"
)

// Every suite runs on three masters.
func TestClusterSuites(t *testing.T) {
	t.Parallel()
	in := clusters(t)
	queue := fenced(in, openQueue)
	queue.Without |= drivertest.Alone
	for name, suite := range map[string]func(*testing.T){
		"Fenced":      func(t *testing.T) { drivertest.RunFenced(t, queue) },
		"Advisory":    func(t *testing.T) { drivertest.RunAdvisory(t, advisory(in)) },
		"Watcher":     func(t *testing.T) { drivertest.RunWatcher(t, harness(in, openQueue)) },
		"Breaker":     func(t *testing.T) { drivertest.RunBreaker(t, harness(in, openQueue)) },
		"Batch":       func(t *testing.T) { drivertest.RunBatch(t, harness(in.tagged(), openQueue)) },
		"Fence":       func(t *testing.T) { drivertest.RunFence(t, fences(in)) },
		"Values":      func(t *testing.T) { drivertest.RunValues(t, values(in)) },
		"Versions":    func(t *testing.T) { versionsSuite(t, in) },
		"Stock":       func(t *testing.T) { stockSuite(t, in) },
		"Once":        func(t *testing.T) { onceSuite(t, in) },
		"Limiter":     func(t *testing.T) { limiterSuite(t, in) },
		"Barrier":     func(t *testing.T) { barrierSuite(t, in) },
		"Idempotency": func(t *testing.T) { idempotencySuite(t, in) },
		"Stream":      func(t *testing.T) { streamSuite(t, in) },
		"Inbox":       func(t *testing.T) { inboxMakesAnEffectOnce(t, in) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite(t)
		})
	}
}

// suiteScripts are those whose answers the suites lose. Every node must know them: that
// it does not is an answer, too.
var suiteScripts = []*script{contendScript, releaseScript, renewScript, showScript, breakScript, plainAcquireScript,
	plainReleaseScript, enterScript, rebaseScript, putScript, versionScript, stockHoldScript, stockSettleScript,
	stockSupplyScript, stockAdjustScript, stockLevelScript, onceClaimScript, onceDoneScript, onceForgetScript,
	idempotencyClaimScript, idempotencyUpdateScript, streamAddScript, limitScript}
