package drivertest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// BellHarness tells [RunBell] how to reach one driver.Bell. Each opening of a backend is
// one more process that rings and listens; without Servers there is only one.
type BellHarness = StoreHarness[driver.Bell]

// BellBackend is where processes ring for each other.
type BellBackend = StoreBackend[driver.Bell]

// RunBell runs the suite of driver.Bell.
func RunBell(t *testing.T, h BellHarness) {
	var tests []storeTest[driver.Bell]
	for _, c := range []struct {
		name  string
		needs Ability
		test  func(*bellScene)
	}{
		{"BellIsHeard", 0, testBellIsHeard},
		{"BellStops", 0, testBellStops},
		{"BellCallsOneAtATime", 0, testBellCallsOneAtATime},
		{"BellNames", Servers, testBellNames},
		{"BellIsHeardElsewhere", Servers, testBellIsHeardElsewhere},
		{"BellDoesNotBlock", Servers | onPaths, testBellDoesNotBlock},
		{"BellOverACut", Servers | onPaths, testBellOverACut},
		{"BellOverAKilledServer", Servers, testBellOverAKilledServer},
	} {
		tests = append(tests, storeTest[driver.Bell]{c.name, c.needs, func(s *storeScene[driver.Bell]) {
			c.test(&bellScene{storeScene: s, bell: s.store})
		}})
	}
	h.run(t, tests)
}

// bellScene is one test with a first bell.
type bellScene struct {
	*storeScene[driver.Bell]
	bell driver.Bell
}

// listen counts what a bell hears while the test runs.
func (s *bellScene) listen(b driver.Bell) *atomic.Int64 {
	var heard atomic.Int64
	s.Cleanup(b.Listen(func(string) { heard.Add(1) }))
	return &heard
}

// mustHear rings until it is heard: a ring may be lost.
func (s *bellScene) mustHear(by driver.Bell, heard *atomic.Int64) {
	s.Helper()
	before := heard.Load()
	for end := time.Now().Add(patience); heard.Load() == before; time.Sleep(5 * time.Millisecond) {
		by.Ring()
		if time.Now().After(end) {
			s.Fatalf("no ring is heard after %v", patience)
		}
	}
}

// testBellIsHeard by all who listen in the process that rings.
func testBellIsHeard(s *bellScene) {
	s.bell.Ring() // nobody listens
	one, two := s.listen(s.bell), s.listen(s.bell)
	s.mustHear(s.bell, one)
	s.mustHear(s.bell, two)
}

// testBellStops: nothing is heard once stop has returned, but by the others.
func testBellStops(s *bellScene) {
	other := s.listen(s.bell)
	for range 50 {
		var heard, late atomic.Int64
		var stopped atomic.Bool
		stop := s.bell.Listen(func(string) {
			if heard.Add(1); stopped.Load() {
				late.Add(1)
			}
		})
		rung := make(chan struct{})
		go func() {
			defer close(rung)
			for range 20 {
				s.bell.Ring()
			}
		}()
		stop()
		stopped.Store(true)
		<-rung
		if s.bell.Ring(); late.Load() != 0 {
			s.Fatalf("%d rings were heard after the end, and %d before", late.Load(), heard.Load()-late.Load())
		}
	}
	s.mustHear(s.bell, other)
}

// testBellCallsOneAtATime rings from many goroutines.
func testBellCallsOneAtATime(s *bellScene) {
	var inside, heard atomic.Int64
	s.Cleanup(s.bell.Listen(func(string) {
		if inside.Add(1) != 1 {
			s.Error("two calls at once")
		}
		runtime.Gosched() // lets a second call come in
		heard.Add(1)
		inside.Add(-1)
	}))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				s.bell.Ring()
			}
		})
	}
	all.Wait()
	s.mustHear(s.bell, &heard)
}

// testBellNames: a name is heard as it was rung, here and elsewhere, unless any name is.
func testBellNames(s *bellScene) {
	const name = "!order/\"42\"\né"
	var here, there, others atomic.Int64
	hear := func(b driver.Bell, to *atomic.Int64) {
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
	hear(s.bell, &here)
	hear(s.open(), &there)
	for end := time.Now().Add(patience); here.Load() == 0 || there.Load() == 0; time.Sleep(5 * time.Millisecond) {
		s.bell.Ring(name)
		if time.Now().After(end) {
			s.Fatalf("the name was heard %d times here and %d times elsewhere", here.Load(), there.Load())
		}
	}
	if n := others.Load(); n != 0 {
		s.Errorf("%d names were heard that nobody rang", n)
	}
}

// testBellIsHeardElsewhere: each process hears the other.
func testBellIsHeardElsewhere(s *bellScene) {
	other := s.open()
	here, there := s.listen(s.bell), s.listen(other)
	s.mustHear(s.bell, there)
	s.mustHear(other, here)
}

// testBellDoesNotBlock, whatever is wrong on the way.
func testBellDoesNotBlock(s *bellScene) {
	heard := s.listen(s.bell)
	s.mustHear(s.bell, heard)
	s.faults.Cut()
	rung := make(chan struct{})
	go func() {
		defer close(rung)
		for range 1000 {
			s.bell.Ring()
		}
	}()
	select {
	case <-rung:
	case <-time.After(patience):
		s.Fatalf("1000 rings take longer than %v", patience)
	}
}

func testBellOverACut(s *bellScene) {
	other := s.open()
	there := s.listen(other)
	s.mustHear(s.bell, there)
	s.faults.Cut()
	s.bell.Ring()
	s.faults.Heal()
	s.mustHear(s.bell, there)
}

func testBellOverAKilledServer(s *bellScene) {
	other := s.open()
	there := s.listen(other)
	s.mustHear(s.bell, there)
	s.faults.Kill()
	s.bell.Ring()
	s.faults.Restart()
	s.mustHear(s.bell, there)
}
