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
	Violations []Violation // the first 1,000, in the order in which they were found
	Total      int         // how many there are
}

// OK reports whether no rule was violated.
func (f Findings) OK() bool { return f.Total == 0 }

func (f *Findings) add(rule Rule, key string, first, second Ref, format string, args ...any) {
	f.Total++
	if len(f.Violations) < maxListed {
		f.Violations = append(f.Violations, Violation{rule, key, first, second, fmt.Sprintf(format, args...)})
	}
}

// list ends a summary: a line for each listed violation.
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

// A Verdict is what a checker other than [CheckTokens] found. Look at the counts
// too: a history in which nothing was done shows nothing.
type Verdict struct {
	Events  int // of the whole history
	Done    int // calls that the checker knows, and that were done
	Refused int // of them, refused by a guard
	Unknown int // of them, without a known outcome

	Findings
}

// String is a summary, with one line for each listed violation.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events: %d done, %d refused, %d unknown; ", v.Events, v.Done, v.Refused, v.Unknown)
	v.list(&b)
	return b.String()
}
