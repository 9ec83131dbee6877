package drivertest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// NotifierHarness gives [RunNotifier] access to one driver.Notifier. Each opening of a backend is
// another process that notifies and listens; without Servers there is only one.
type NotifierHarness = StoreHarness[driver.Notifier]

// NotifierBackend is a channel over which processes notify each other.
type NotifierBackend = StoreBackend[driver.Notifier]

// RunNotifier runs the conformance suite of driver.Notifier.
func RunNotifier(t *testing.T, h NotifierHarness) {
	runStore(t, h, func(s *storeScene[driver.Notifier]) *notifierScene {
		return &notifierScene{storeScene: s}
	}, []suiteTest[*notifierScene]{
		{"NotifierIsHeard", 0, testNotifierIsHeard},
		{"NotifierStops", 0, testNotifierStops},
		{"NotifierCallsOneAtATime", 0, testNotifierCallsOneAtATime},
		{"NotifierNames", Servers, testNotifierNames},
		{"NotifierOverACut", Servers | onPaths, testNotifierOverACut},
		{"NotifierOverAKilledServer", Servers, testNotifierOverAKilledServer},
	})
}

// notifierScene is one test with a first notifier.
type notifierScene struct {
	*storeScene[driver.Notifier]
}

// listen counts the notifications that b receives while the test runs.
func (s *notifierScene) listen(b driver.Notifier) *atomic.Int64 {
	var heard atomic.Int64
	s.Cleanup(b.Listen(func(string) { heard.Add(1) }))
	return &heard
}

// mustHear notifies until a notification is received: one may be lost.
func (s *notifierScene) mustHear(by driver.Notifier, heard *atomic.Int64) {
	s.Helper()
	before := heard.Load()
	testbed.Eventually(s, "a notification is heard", patience, func() bool { by.Notify(); return heard.Load() > before })
}

// testNotifierIsHeard checks that all listeners in the notifying process are called.
func testNotifierIsHeard(s *notifierScene) {
	s.store.Notify() // no listener yet
	one, two := s.listen(s.store), s.listen(s.store)
	s.mustHear(s.store, one)
	s.mustHear(s.store, two)
}

// testNotifierStops checks that a listener is not called after stop returns; others are.
func testNotifierStops(s *notifierScene) {
	other := s.listen(s.store)
	for range 50 {
		var heard, late atomic.Int64
		var stopped atomic.Bool
		stop := s.store.Listen(func(string) {
			if heard.Add(1); stopped.Load() {
				late.Add(1)
			}
		})
		notified := make(chan struct{})
		go func() {
			defer close(notified)
			for range 20 {
				s.store.Notify()
			}
		}()
		stop()
		stopped.Store(true)
		<-notified
		if s.store.Notify(); late.Load() != 0 {
			s.Fatalf("%d notifications were heard after the end, and %d before", late.Load(), heard.Load()-late.Load())
		}
	}
	s.mustHear(s.store, other)
}

// testNotifierCallsOneAtATime notifies from many goroutines.
func testNotifierCallsOneAtATime(s *notifierScene) {
	var inside, heard atomic.Int64
	s.Cleanup(s.store.Listen(func(string) {
		if inside.Add(1) != 1 {
			s.Error("two calls at once")
		}
		runtime.Gosched() // allows a second call to enter
		heard.Add(1)
		inside.Add(-1)
	}))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				s.store.Notify()
			}
		})
	}
	all.Wait()
	s.mustHear(s.store, &heard)
}

// testNotifierNames checks that a name arrives unchanged in all processes; "" stands for any name.
func testNotifierNames(s *notifierScene) {
	const name = "!order/\"42\"\né"
	var here, there, others atomic.Int64
	hear := func(b driver.Notifier, to *atomic.Int64) {
		s.Cleanup(b.Listen(func(heard string) {
			switch heard {
			case name:
				to.Add(1)
			case "":
			default:
				others.Add(1)
			}
		}))
	}
	hear(s.store, &here)
	hear(s.open(), &there)
	testbed.Eventually(s, "the name is heard here and elsewhere", patience, func() bool {
		s.store.Notify(name)
		return here.Load() > 0 && there.Load() > 0
	})
	if n := others.Load(); n != 0 {
		s.Errorf("%d names were received that were not sent", n)
	}
}

// testNotifierOverACut checks that each process receives the other's notifications, and that Notify
// does not block during a cut.
func testNotifierOverACut(s *notifierScene) {
	other := s.open()
	here, there := s.listen(s.store), s.listen(other)
	s.mustHear(s.store, there)
	s.mustHear(other, here)
	s.faults.Cut()
	notified := testbed.Later(s, patience, func() error {
		for range 1000 {
			s.store.Notify()
		}
		return nil
	})
	testbed.OK(s, notified())
	s.faults.Heal()
	s.mustHear(s.store, there)
}

func testNotifierOverAKilledServer(s *notifierScene) {
	other := s.open()
	there := s.listen(other)
	s.mustHear(s.store, there)
	s.faults.Kill()
	s.store.Notify()
	s.faults.Restart()
	s.mustHear(s.store, there)
}
