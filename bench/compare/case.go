// Package compare measures several sides that do the same work: in interleaved rounds,
// by medians and paired ratios, each side under a checker. It is independent of servers.
//
//	result := compare.Case{Name: "redis/distinct/16", Goals: goals}.Measure(ctx, sides, options)
package compare

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Case is one kind of work. The first of its sides is ours.
type Case struct {
	Name  string // as "redis/distinct/16"
	Note  string // common to all sides: clients, options, durability
	Goals []Goal
	// Rounds bounds the rounds of each side; 0 means that the run decides.
	Rounds int
	// Window is the minimum time of a side in a round. If the run's window is below half a
	// second, that one applies: such a run only shows that the case works.
	Window time.Duration
}

// Side does the work of a case in one way.
type Side struct {
	Name string
	// Run works for a window of time. It uses each name of a lock once.
	Run func(ctx context.Context, window time.Duration) (Sample, error)
}

// Goal compares a metric of one side with that of other sides.
type Goal struct {
	Metric string
	// Side is the side of the metric; empty means the first side.
	Side string
	// Against are the sides to compare with: the best of them counts. If it is empty, the
	// goal is about the metric itself.
	Against []string
	// Want is the lowest ratio, or the highest if AtMost is set; 0 means that the ratio is
	// only shown.
	Want   float64
	AtMost bool
}

// Metrics of every sample. Times are in seconds. Sides may add others.
const (
	Rate     = "rate"     // operations a second
	P50      = "p50"      // of the wait for an operation
	P99      = "p99"      // of the same
	Max      = "max"      // of the same
	Fairness = "fairness" // operations of the busiest client, divided by those of the idlest
	Allocs   = "allocs"   // allocations of this process for each operation
	CPU      = "cpu"      // processor time of this process for each operation
	// ServerCPU is the processor time of the servers for each operation, also of those that
	// another side uses and that are idle meanwhile.
	ServerCPU = "server cpu"
)

// Options say how long and how often to measure.
type Options struct {
	Rounds int           // of each side
	Window time.Duration // of each side in a round
	// Progress receives a line for each round; nil disables it.
	Progress func(line string)
}

// Measure runs all sides in every round, each time in another order, after a short warm-up
// round. It stops at the first error.
func (c Case) Measure(ctx context.Context, sides []Side, o Options) (Result, error) {
	if c.Rounds > 0 {
		o.Rounds = min(o.Rounds, c.Rounds)
	}
	if o.Window >= 500*time.Millisecond {
		o.Window = max(o.Window, c.Window)
	}
	r := Result{Name: c.Name, Note: c.Note, Goals: c.Goals}
	for _, side := range sides {
		r.Sides = append(r.Sides, Measured{Name: side.Name})
	}
	if o.Rounds > 1 {
		for _, side := range sides {
			if _, err := side.sample(ctx, min(o.Window/4, 300*time.Millisecond)); err != nil {
				return r, fmt.Errorf("%s: %s: %w", c.Name, side.Name, err)
			}
		}
	}
	for round := range o.Rounds {
		for i := range sides {
			at := (round + i) % len(sides)
			sample, err := sides[at].sample(ctx, o.Window)
			if err != nil {
				return r, fmt.Errorf("%s: %s: %w", c.Name, sides[at].Name, err)
			}
			side := &r.Sides[at]
			side.Rounds, side.Violations = append(side.Rounds, sample.metrics()), append(side.Violations, sample.Violations...)
			if o.Progress != nil {
				o.Progress(fmt.Sprintf("%s: round %d of %d: %s: %d in %v", c.Name, 1+round, o.Rounds, sides[at].Name, sample.Ops, sample.Elapsed.Round(time.Millisecond)))
			}
		}
	}
	return r, nil
}

// sample runs a side once, after a collection of the previous side's garbage.
func (s Side) sample(ctx context.Context, window time.Duration) (Sample, error) {
	runtime.GC()
	return s.Run(ctx, window)
}
