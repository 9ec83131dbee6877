package pictures

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/advise"
)

const docs = "../../../docs/"

// compare checks a picture of the docs.
func compare(t *testing.T, name, svg string) {
	t.Helper()
	generated.Check(t, filepath.Join(docs, "pictures", name+".svg"), svg)
}

// TestLatency draws the measurements of docs/reference/performance.md.
func TestLatency(t *testing.T) {
	text, err := os.ReadFile(docs + "reference/performance.md")
	testbed.OK(t, err)
	chart := picture.Chart{Title: "Acquire and release a free lock: median on one machine, logarithmic"}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| [0-9.]+ \| ([0-9.]+[µm]s) \|`).FindAllStringSubmatch(string(text), -1) {
		took, err := time.ParseDuration(row[2])
		testbed.OK(t, err)
		chart.Bars = append(chart.Bars, picture.Bar{Name: row[1], Value: took.Seconds(), Text: row[2]})
	}
	if len(chart.Bars) < 9 {
		t.Fatalf("the page has %d times", len(chart.Bars))
	}
	slices.SortStableFunc(chart.Bars, func(a, b picture.Bar) int { return int(1e9 * (a.Value - b.Value)) })
	compare(t, "latency", chart.SVG())
}

// TestAdvice draws the first table of `interlock advise`.
func TestAdvice(t *testing.T) {
	guides, err := advise.Load()
	testbed.OK(t, err)
	guide := guides.Guides[0]
	d := picture.Decisions{Title: guide.Title + ": take the first row that fits"}
	for _, row := range guide.Rows {
		var conditions []string
		for _, id := range guide.Asks {
			var says []string
			for _, answer := range row.When[id] {
				says = append(says, strings.TrimSuffix(answerOf(guides, id, answer), "."))
			}
			if len(says) > 0 {
				conditions = append(conditions, strings.Join(says, ", or "))
			}
		}
		d.Rules = append(d.Rules, picture.Rule{When: strings.Join(conditions, "; and "), Then: row.Choose})
	}
	compare(t, "advise", d.SVG())
}

func answerOf(g *advise.Guides, question, answer string) string {
	for _, q := range g.Questions {
		for _, a := range q.Answers {
			if q.ID == question && a.ID == answer {
				return a.Says
			}
		}
	}
	return answer
}
