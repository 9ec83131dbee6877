package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/picture"
)

// plots are the pictures of docs/reference/performance.md: the ratios of a metric in the cases
// of stores or of transactions.
var plots = []struct {
	name, title  string
	metrics      []string
	transactions bool
}{
	{"bench-locks", "Locks: our acquires a second, divided by those of the other; | is 1, and a mark is the goal", []string{compare.Rate}, false},
	{"bench-waits", "Locks: our waits, divided by those of the other; less is better", []string{compare.P50, compare.P99}, false},
	{"bench-transactions", "Sagas, messages and limits: our rate, divided by that of the other", []string{compare.Rate}, true},
}

// draw draws the plots of a report. They follow the reader's light or dark theme.
func draw(tb testing.TB, report compare.Report, dir string) {
	for _, p := range plots {
		chart := picture.Chart{Title: p.title, Line: 1}
		for _, r := range report.Ratios() {
			if strings.HasPrefix(r.Name, "percolator/") {
				continue // docs/how-to/percolator.md has a table of them
			}
			for _, metric := range p.metrics {
				if r.Metric == metric && r.Theirs != "" && r.Value > 0 && ofTransactions(r.Name) == p.transactions {
					chart.Bars = append(chart.Bars, picture.Bar{Name: barName(r), Value: r.Value, Text: fmt.Sprintf("%.2f", r.Value), Goal: r.Want})
				}
			}
		}
		if len(chart.Bars) == 0 {
			chart.Title = "Nothing is recorded yet: make bench"
		}
		ok(tb, os.WriteFile(filepath.Join(dir, p.name+".svg"), []byte(chart.SVG()), 0o644))
	}
}

func ofTransactions(name string) bool {
	kind, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{"saga", "outbox", "queue", "inbox", "limit"}, kind)
}

func barName(r compare.Ratio) string {
	ours := ""
	if r.Ours != "interlock" {
		ours = r.Ours + " "
	}
	return fmt.Sprintf("%s: %sagainst %s", r.Name, ours, r.Theirs)
}

// TestDraw draws measurements, and an explanation if there are none.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	side := func(name string, rate float64) compare.Measured {
		return compare.Measured{Name: name, Rounds: []map[string]float64{{compare.Rate: rate}}}
	}
	draw(t, compare.Report{Results: []compare.Result{{Name: "store/hot", Sides: []compare.Measured{side("interlock", 30), side("peer", 20)},
		Goals: []compare.Goal{{Metric: compare.Rate, Against: []string{"peer"}, Want: 2}}}}}, dir)
	for file, want := range map[string]string{"bench-locks": "store/hot: against peer: 1.50. ", "bench-waits": "Nothing is recorded"} {
		if text, err := os.ReadFile(filepath.Join(dir, file+".svg")); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", file, err, text)
		}
	}
}
