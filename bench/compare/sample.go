package compare

import (
	"maps"
	"slices"
	"time"
)

// Sample is the work of one side in one round.
type Sample struct {
	Ops     int // completed in the measured time
	Elapsed time.Duration
	Total   int // operations that the costs are divided by, also those before and after that time
	// Waits are the durations of operations, or the waits for the lock. It is nil if they
	// are unknown.
	Waits []time.Duration
	// PerClient is the number of operations of each client; nil if it is unknown.
	PerClient []int
	// Values are further metrics.
	Values map[string]float64
	// Violations are the checker's findings. A sample with violations does not count.
	Violations []string
}

// metrics returns the values of a sample by name.
func (s Sample) metrics() map[string]float64 {
	m := maps.Clone(s.Values)
	if m == nil {
		m = map[string]float64{}
	}
	if s.Elapsed > 0 {
		m[Rate] = float64(s.Ops) / s.Elapsed.Seconds()
	}
	if len(s.Waits) > 0 {
		slices.Sort(s.Waits)
		m[P50], m[P99], m[Max] = s.quantile(0.5), s.quantile(0.99), s.quantile(1)
	}
	if len(s.PerClient) > 1 {
		m[Fairness] = float64(slices.Max(s.PerClient)) / float64(max(1, slices.Min(s.PerClient)))
	}
	return m
}

func (s Sample) quantile(q float64) float64 {
	return s.Waits[int(q*float64(len(s.Waits)-1))].Seconds()
}

// Measured has the metrics of one side in all rounds.
type Measured struct {
	Name string `json:"name"`
	// Rounds are its metrics per round.
	Rounds     []map[string]float64 `json:"rounds"`
	Violations []string             `json:"violations,omitempty"`
}

// values returns one metric per round; nil if a round does not have it.
func (m Measured) values(metric string) []float64 {
	var all []float64
	for _, round := range m.Rounds {
		value, ok := round[metric]
		if !ok {
			return nil
		}
		all = append(all, value)
	}
	return all
}

// Median returns the median of a metric, or 0 if it was not measured.
func (m Measured) Median(metric string) float64 { return median(m.values(metric)) }

// cost returns the processor time of this process and of the servers for an operation.
func (m Measured) cost() string {
	if m.values(ServerCPU) == nil {
		return "–"
	}
	return Figure(CPU, m.Median(CPU)) + " + " + Figure(CPU, m.Median(ServerCPU))
}

// median returns the middle of values, or the mean of the two middle ones.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}

// spread returns the range of values, without the smallest and the largest if there are five
// or more. For seven rounds, the interval contains the median in seven cases of eight.
func spread(values []float64) (low, high float64) {
	if len(values) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) >= 5 {
		sorted = sorted[1 : len(sorted)-1]
	}
	return sorted[0], sorted[len(sorted)-1]
}
