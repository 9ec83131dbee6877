package saga

import (
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestStoppedAnywhere: an engine that is stopped at any point until another one has
// brought the saga to its end appends nothing when it wakes up, and has no effect: neither
// if it still takes its claim for valid, nor if it sees that this is over. Then it makes
// no call either, but those that were on their way.
func TestStoppedAnywhere(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := 0
			for point := 1; point <= p.points; point++ {
				for _, expired := range []bool{false, true} {
					if testbed.Brief() && expired == (point%2 == 0) {
						continue // half of them without the race detector only
					}
					bubble(t, func(t *testing.T) {
						if p.stopped(t, point, expired) != nil {
							told++
						}
					})
					if t.Failed() {
						t.Fatalf("stopped at %d of %d, sees that its claim is over: %v", point, p.points, expired)
					}
				}
			}
			if told == 0 {
				t.Error("no engine that woke up returned the outcome")
			}
		})
	}
}

// stopped stops an engine at a point, and returns what its caller got.
func (p plot) stopped(t *testing.T, point int, expired bool) (told *Outcome) {
	g, store := &target{}, memory.NewJournal()
	at, former, first := stopAt(point), grant(1), make(chan *Outcome, 1)
	go func() { first <- p.live(t, store, &target{of: g}, former, at) }()
	<-at.Reached
	heir, _ := p.life(t, store, g, 2, 0)
	p.check(t, store, g, heir)
	records, effects, calls := txntest.Records(t, store, "1"), g.did(), len(g.calls)
	former.Expired.Store(expired)
	close(at.Wake)
	told = <-first
	same(t, "records", txntest.Records(t, store, "1"), records...)
	same(t, "effects", g.did(), effects...)
	if late := len(g.calls) - calls; expired && late > 2 { // there are two in a group
		t.Errorf("%d calls behind its claim: %v", late, g.calls[calls:])
	}
	if told != nil && told.State != p.end {
		t.Errorf("told %+v, want %v", told, p.end)
	}
	unscheduled(t, store)
	return told
}
