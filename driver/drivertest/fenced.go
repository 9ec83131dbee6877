package drivertest

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// RunFenced runs the whole suite on a driver of fenced locks. What needs a
// server to break is left out where Backend.Faults is nil, and what a driver
// does not claim in its Guarantees is not asked of it.
func RunFenced(t *testing.T, h Harness) {
	run(t, h, func(need) bool { return true })
}

func run(t *testing.T, h Harness, wanted func(need) bool) {
	for _, c := range []struct {
		name  string
		needs need
		test  func(*scene)
	}{
		// Who holds.
		{"Exclusion", 0, testExclusion},
		{"NoWait", 0, testNoWait},
		{"Names", 0, testNames},
		{"ManyNames", 0, testManyNames},
		{"Inspect", 0, testInspect},
		// Tokens.
		{"TokensOver1000HandOvers", tokens, testTokensOver1000HandOvers},
		{"TokensOverRestart", tokens | server, testTokensOverRestart},
		{"TokensOverWipe", tokens | server, testTokensOverWipe},
		{"TokensStartAtTheClock", tokens, testTokensStartAtTheClock},
		// Waiting.
		{"FIFO", fifo, testFIFO},
		{"CancelledWaiterLeavesNothing", 0, testCancelledWaiterLeavesNothing},
		{"DeadWaiter", 0, testDeadWaiter},
		{"LostPush", pushes, testLostPush},
		// Giving up.
		{"ReleaseIsIdempotent", 0, testReleaseIsIdempotent},
		{"ReleaseByNonHolder", 0, testReleaseByNonHolder},
		{"ReleaseAfterLossSparesTheNext", 0, testReleaseAfterLossSparesTheNext},
		// Staying alive, and its end.
		{"RenewalKeepsIt", 0, testRenewalKeepsIt},
		{"DeadlineStartsWithTheRequest", delays, testDeadlineStartsWithTheRequest},
		{"CrashedHolder", 0, testCrashedHolder},
		{"LossByDeletion", 0, testLossByDeletion},
		{"ServerKilled", server, testServerKilled},
		{"ServerPaused", server, testServerPaused},
		{"CutOff", server, testCutOff},
		// Lost replies.
		{"RepeatedAcquireConverges", 0, testRepeatedAcquireConverges},
		{"LostReplyToAcquire", replies, testLostReplyToAcquire},
		{"LostReplyToRelease", replies, testLostReplyToRelease},
		// The contract around it.
		{"Guarantees", 0, testGuarantees},
		{"UnmetRequirement", tokens, testUnmetRequirement},
		{"ContextAlreadyEnded", 0, testContextAlreadyEnded},
		{"Close", 0, testClose},
	} {
		if !wanted(c.needs) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h.run(t, c.needs&server != 0, func(s *scene) {
				if s.has(c.needs) {
					c.test(s)
				}
			})
		})
	}
	t.Run("NoGoroutineIsLeft", func(t *testing.T) { testNoGoroutineIsLeft(t, h) })
}

// need is what a test needs of the backend or the driver.
type need int

const (
	server  need = 1 << iota // Backend.Faults
	replies                  // ReplyDropper; also server
	delays                   // Delayer; also server
	pushes                   // PushDropper
	fifo                     // Guarantees.Order is FIFO
	tokens                   // a fenced driver
)

// scene is one test with its backend.
type scene struct {
	*testing.T
	Harness
	backend Backend
	faults  Faults
}

func (h Harness) run(t *testing.T, exclusive bool, test func(*scene)) {
	bubble := h.Bubble
	if bubble == nil {
		bubble = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	bubble(t, func(t *testing.T) {
		b := h.Start(t, exclusive)
		test(&scene{T: t, Harness: h, backend: b, faults: b.Faults()})
	})
}

// has reports whether what a test needs is there. A driver that claims an
// ability must have the means to test it: FIFO is asked of the driver, the rest
// of the harness, where its absence is a statement about the backend.
func (s *scene) has(n need) bool {
	if n&(server|replies|delays) != 0 && s.faults == nil {
		return false
	}
	if _, ok := s.faults.(Delayer); n&delays != 0 && !ok {
		return false
	}
	if _, ok := s.faults.(ReplyDropper); n&replies != 0 && !ok {
		return false
	}
	if _, ok := s.backend.(PushDropper); n&pushes != 0 && !ok {
		return false
	}
	return n&fifo == 0 || s.open().Guarantees().Order == interlock.FIFO
}

func (s *scene) open() driver.Fenced {
	s.Helper()
	d, err := s.backend.Open(s.T)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	return d
}

// lockName is the name that most tests use.
const lockName = "accounts/42"

// patience bounds what should happen at once on a slow machine.
const patience = 20 * time.Second
