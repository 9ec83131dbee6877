package rehearsal

import "strings"

// Report tells a finding on several lines: what is wrong, with what (empty if that is not
// known), in which run, its outcome, and how snapshots differ.
func Report(kind, with, scenario, problem, diff string) string {
	var b strings.Builder
	b.WriteString(kind)
	if with != "" {
		b.WriteString(": " + with)
	}
	b.WriteString("\n  when: " + scenario + "\n  then: " + problem)
	for line := range strings.Lines(diff) {
		b.WriteString("\n    " + strings.TrimRight(line, "\n"))
	}
	return b.String()
}
