package history

import (
	"fmt"
	"strings"
)

// maxListed bounds Findings.Violations, so that a broken run does not need
// memory for each of its events.
const maxListed = 1000

// Findings are the broken rules of a history.
type Findings struct {
	Violations []Violation // the first 1,000, in the order of detection
	Total      int         // their number
}

// OK reports whether no rule was violated.
func (f Findings) OK() bool { return f.Total == 0 }

func (f *Findings) add(rule Rule, key string, first, second Ref, format string, args ...any) {
	f.Total++
	if len(f.Violations) < maxListed {
		f.Violations = append(f.Violations, Violation{rule, key, first, second, fmt.Sprintf(format, args...)})
	}
}

// list appends a line for each listed violation to a summary.
func (f Findings) list(b *strings.Builder) {
	if f.OK() {
		b.WriteString("no violation")
		return
	}
	fmt.Fprintf(b, "%d violation", f.Total)
	if f.Total > 1 {
		b.WriteString("s")
	}
	for _, v := range f.Violations {
		b.WriteString("\n  " + v.String())
	}
}

// A Verdict is the result of a checker other than [CheckTokens]. Check the counts
// too: a history in which nothing was done proves nothing.
type Verdict struct {
	Events  int // of the whole history
	Done    int // calls known to the checker that were done
	Refused int // known calls that a guard rejected
	Unknown int // known calls with an unknown outcome

	Findings
}

// String returns a summary, with one line for each listed violation.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events: %d done, %d refused, %d unknown; ", v.Events, v.Done, v.Refused, v.Unknown)
	v.list(&b)
	return b.String()
}
