package testbed

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// Contestant is one side of a comparison: Work is called by many goroutines, each with a
// number of its own, until it fails or the time is over.
type Contestant struct {
	Name string
	Work func(goroutine int) error
}

// MeasuresOnly skips a test that takes its time to measure, unless INTERLOCK_BENCH is full.
func MeasuresOnly(t *testing.T) {
	t.Helper()
	if os.Getenv("INTERLOCK_BENCH") != "full" {
		t.Skip("it measures: set INTERLOCK_BENCH=full")
	}
}

// Compare measures how often a second the work of each contestant is done by so many
// goroutines at once, in turns, and logs the medians and the ratios of the first one to
// the others.
func Compare(t *testing.T, goroutines int, contestants ...Contestant) {
	t.Helper()
	const rounds, span = 5, 700 * time.Millisecond
	rates := make([][]float64, len(contestants))
	for range rounds {
		for i, c := range contestants {
			rates[i] = append(rates[i], rate(t, goroutines, span, c))
		}
	}
	line := fmt.Sprintf("%d goroutines:", goroutines)
	for i, c := range contestants {
		line += fmt.Sprintf(" %s %.0f/s", c.Name, median(rates[i]))
		if i > 0 {
			var ratios []float64
			for round, own := range rates[0] {
				ratios = append(ratios, own/rates[i][round])
			}
			line += fmt.Sprintf(" (%.2f x, %.2f to %.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
	}
	t.Log(line)
}

// rate is how often a second the work is done.
func rate(t *testing.T, goroutines int, span time.Duration, c Contestant) float64 {
	t.Helper()
	var all sync.WaitGroup
	done := make([]int, goroutines)
	began := time.Now()
	for i := range goroutines {
		all.Go(func() {
			for time.Since(began) < span {
				if err := c.Work(i); err != nil {
					t.Errorf("%s: %v", c.Name, err)
					return
				}
				done[i]++
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range done {
		sum += n
	}
	return float64(sum) / time.Since(began).Seconds()
}

func median[T cmp.Ordered](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
