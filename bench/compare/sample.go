package compare

import (
	"maps"
	"slices"
	"time"
)

// A Sample is what one side did in one round.
type Sample struct {
	Ops     int // that ended in the time that is measured
	Elapsed time.Duration
	Total   int // operations from which the costs come, also those before and after that time
	// Waits are how long operations took, or how long they waited for the lock. It is nil
	// if that is not known.
	Waits []time.Duration
	// PerClient is the number of operations of each client; nil if that is not known.
	PerClient []int
	// Values are further metrics.
	Values map[string]float64
	// Violations are what the checker noticed. Nothing counts in a sample that has any.
	Violations []string
}

// metrics are the values of a sample by name.
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

// Measured is what one side did in all rounds.
type Measured struct {
	Name string `json:"name"`
	// Rounds are its metrics, round by round.
	Rounds     []map[string]float64 `json:"rounds"`
	Violations []string             `json:"violations,omitempty"`
}

func (m *Measured) add(s Sample) {
	m.Rounds = append(m.Rounds, s.metrics())
	m.Violations = append(m.Violations, s.Violations...)
}

// values are those of one metric, round by round; nil if a round does not have it.
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

// Median is the middle of the values of a metric, or 0 if it was not measured.
func (m Measured) Median(metric string) float64 { return median(m.values(metric)) }

// median is the middle of values, and the mean of the two in the middle of an even number.
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

// spread is the range of values, without the smallest and the largest if there are five or
// more: of seven rounds that is an interval in which the median lies seven times in eight.
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
