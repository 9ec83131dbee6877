package outbox

import (
	"slices"
	"testing"
	"time"
)

// TestLull: a service that finds nothing waits for a lane that it made wait; and if the
// database's clock is behind, looks again soon, and less and less often.
func TestLull(t *testing.T) {
	o, err := (&Options{MinPoll: time.Second, MaxPoll: time.Minute}).orDefault()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_000_000, 0)
	lulls := func(next time.Time, n int) (all []time.Duration) {
		for range n {
			d := o.lull(next, now)
			all = append(all, d)
			now = now.Add(d)
		}
		return all
	}
	if got, want := lulls(time.Time{}, 2), []time.Duration{time.Hour, time.Hour}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	millis := func(n ...time.Duration) (all []time.Duration) {
		for _, s := range n {
			all = append(all, s*time.Millisecond)
		}
		return all
	}
	got, want := lulls(now.Add(90*time.Minute), 6), millis(3_600_000, 1_800_001, 1000, 1001, 2002, 4004)
	if !slices.Equal(got, want) {
		t.Errorf("until a lane was due, and after: %v, want %v", got, want)
	}
}

// TestPoll: a relay looks less and less often the longer it finds nothing.
func TestPoll(t *testing.T) {
	o, err := (*Options)(nil).orDefault()
	if err != nil {
		t.Fatal(err)
	}
	looks := func(quiet time.Duration) (n int) {
		for passed := time.Duration(0); passed < quiet; n++ {
			passed += o.poll(passed)
		}
		return n
	}
	for quiet, want := range map[time.Duration]int{10 * time.Millisecond: 9, 100 * time.Millisecond: 19, time.Second: 29, time.Minute: 91} {
		if n := looks(quiet); n != want {
			t.Errorf("%d looks in %v, want %d", n, quiet, want)
		}
	}
}
