package outbox

import (
	"slices"
	"testing"
	"time"
)

// TestLull: a relay that finds nothing looks less and less often, but in time for a
// lane that it made wait; and if the database's clock is behind, soon after.
func TestLull(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	o, err := (&Options{MinPoll: time.Second, MaxPoll: time.Minute, now: func() time.Time { return now }}).orDefault()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Relay: &Relay{options: o}}
	lulls := func(n int) (all []time.Duration) {
		for range n {
			d := s.lull()
			all = append(all, d)
			now = now.Add(d)
		}
		return all
	}
	seconds := func(n ...time.Duration) (all []time.Duration) {
		for _, s := range n {
			all = append(all, s*time.Second)
		}
		return all
	}
	if got, want := lulls(8), seconds(1, 2, 4, 8, 16, 32, 60, 60); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	s.next = now.Add(90 * time.Second)
	if got, want := lulls(5), append(seconds(60), 30*time.Second+time.Millisecond, time.Second, 2*time.Second, 4*time.Second); !slices.Equal(got, want) {
		t.Errorf("until a lane was due, and after: %v, want %v", got, want)
	}
}
