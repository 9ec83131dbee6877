package tcc

import (
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestStoppedAnywhere: a process that is stopped at any point until another one has
// brought the transaction to its end, or has freed what was held, appends nothing when it
// wakes up, and changes nothing: neither if it still takes its claim for valid, nor if it
// sees that this is over.
func TestStoppedAnywhere(t *testing.T) {
	for name, p := range plots {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, run again %v", name, again), func(t *testing.T) {
				t.Parallel()
				all := p.points
				if all < 0 {
					bubble(t, func(t *testing.T) { all = p.scene().life(t, 1, 0, true) })
				}
				ended := 0
				for point := 1; point <= all; point++ {
					for _, expired := range []bool{false, true} {
						if testbed.Brief() && expired == (point%2 == 0) {
							continue // half of them without the race detector only
						}
						bubble(t, func(t *testing.T) {
							if p.stopped(t, point, again, expired) {
								ended++
							}
						})
						if t.Failed() {
							t.Fatalf("stopped at %d of %d, sees that its claim is over: %v", point, all, expired)
						}
					}
				}
				if ended < all && !testbed.Brief() { // nobody had decided, and nobody did, before the first try
					t.Errorf("of %d that woke up, %d were behind a decision", 2*all, ended)
				}
			})
		}
	}
}

// stopped stops a process at a point, and reports whether another one has decided then.
func (p plot) stopped(t *testing.T, point int, again, expired bool) (decided bool) {
	s, at, former, done := p.scene(), stopAt(point), grant(1), make(chan struct{})
	go func() { defer close(done); s.live(t, former, at, true) }()
	select {
	case <-at.Reached:
	case <-done: // it has passed fewer points this time
		return true
	}
	s.life(t, 2, 0, again)
	records, states := txntest.Records(t, s.store, "1"), s.states()
	decided = len(records) > 0
	former.Expired.Store(expired)
	close(at.Wake)
	s.life(t, 9, 0, false) // if nobody has decided, it still may
	<-done
	if decided {
		same(t, "records", txntest.Records(t, s.store, "1"), records...)
		for i, is := range s.states() {
			if is != states[i] && is != "" { // what an heir did not know of is free after its time
				t.Errorf("%s was %q, and is %q", s.venues[i].name, states[i], is)
			}
		}
	}
	s.check(t)
	return decided
}

// states are what is held or confirmed at each venue; all else is nothing.
func (s *scene) states() (all []string) {
	for _, v := range s.venues {
		is := v.state("1")
		if is != "held" && is != "confirmed" {
			is = ""
		}
		all = append(all, is)
	}
	return all
}
