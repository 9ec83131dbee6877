package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Report has the results of a run.
type Report struct {
	Machine Machine       `json:"machine"`
	Servers []string      `json:"servers"` // with their versions
	Peers   []string      `json:"peers"`   // libraries, with their versions
	Began   time.Time     `json:"began"`
	Took    time.Duration `json:"took_ns"`
	Rounds  int           `json:"rounds"`
	Window  time.Duration `json:"window_ns"`
	Results []Result      `json:"results"`
}

// Ratios returns the ratios of all results.
func (r Report) Ratios() []Ratio {
	var all []Ratio
	for _, result := range r.Results {
		all = append(all, result.Ratios()...)
	}
	return all
}

// Write writes the report as JSON to a file.
func (r Report) Write(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Read reads a report from a file.
func Read(file string) (r Report, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}
	return r, nil
}

// Table writes the ratios as Markdown, and then the metrics of all sides of a case.
func (r Report) Table(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s; %s\n\n", r.Machine, strings.Join(r.Servers, ", "), strings.Join(r.Peers, ", "))
	fmt.Fprintf(&b, "%s, %d rounds of %v, %v in all. A ratio is ours divided by theirs in the same round: the median, and the spread of the rounds.\n\n",
		r.Began.UTC().Format("2 January 2006 15:04"), r.Rounds, r.Window, r.Took.Round(time.Second))
	b.WriteString("| case | metric | ours | against | theirs | ratio | spread | goal | reached | processor time: process + servers | checker |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, result := range r.Results {
		for _, ratio := range result.Ratios() {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(append(ratio.cells(), result.Checker()), " | "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Ratio) cells() []string {
	against, theirs := "–", "–"
	if r.Theirs != "" {
		against, theirs = r.Theirs, Figure(r.Metric, r.Other)
	}
	value, spread := figure(r.Value), figure(r.Low)+"–"+figure(r.High)
	if r.Theirs == "" {
		value, spread = Figure(r.Metric, r.Value), Figure(r.Metric, r.Low)+"–"+Figure(r.Metric, r.High)
	}
	goal, reached := r.goal()
	return []string{r.Name, r.Metric, r.Ours + " " + Figure(r.Metric, r.Mine), against, theirs, value, spread, goal, reached, r.Cost}
}

// goal returns the goal, and whether it is reached.
func (r Ratio) goal() (text, reached string) {
	if r.Want == 0 {
		return "–", "–"
	}
	text, reached = figure(r.Want), "no"
	if r.Theirs == "" {
		text = Figure(r.Metric, r.Want)
	}
	if r.Met() {
		reached = "yes"
	}
	if r.AtMost {
		return "≤ " + text, reached
	}
	return "≥ " + text, reached
}

// Figure formats a value of a metric with its unit.
func Figure(metric string, value float64) string {
	switch metric {
	case P50, P99, Max, CPU, ServerCPU:
		return duration(value)
	case Rate:
		return figure(value) + "/s"
	}
	return figure(value)
}

func duration(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// figure formats a number with three significant digits.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
