package history

import (
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
)

// A Rule is a property that a history can violate.
type Rule string

// The rules that [CheckTokens] judges by.
const (
	// RuleGrantOrder: a grant's token is above that of every grant of the name
	// that had returned before this one was requested.
	RuleGrantOrder Rule = "grant order"
	// RuleOneOwner: a token of a name is granted to one owner, and is not handed
	// over to the next holder.
	RuleOneOwner Rule = "one owner"
	// RuleAccessOrder: no access is accepted under a token below the mark from before the run.
	// Nor is one below the token of an access or a rebase that succeeded and returned before its
	// invocation. A Strict access is not accepted under an equal token either.
	RuleAccessOrder Rule = "access order"
	// RuleRejection: a guard rejects only stale tokens, and has seen only
	// presented ones.
	RuleRejection Rule = "rejection"
)

// A Ref identifies an event. With one writer, Seq is enough.
type Ref struct {
	Writer int
	Seq    int64
	Lane   string
}

// String returns text such as "seq 12 by A".
func (r Ref) String() string { return fmt.Sprintf("seq %d by %s", r.Seq, r.Lane) }

// A Violation is one broken rule.
type Violation struct {
	Rule   Rule
	Key    string // the name or resource
	First  Ref    // the earlier event; for a rejection, the rejected invocation
	Second Ref    // the event that violates the rule
	Text   string // both, in one sentence
}

// String returns the rule and the sentence.
func (v Violation) String() string { return string(v.Rule) + ": " + v.Text }

// A Report is the result of [CheckTokens]. Check the counts too: a history in which
// nothing was accepted proves nothing.
type Report struct {
	Events    int
	Names     int // locks with a judged grant
	Resources int // resources with a judged access
	Grants    int
	Accepted  int // enters, reads and writes that were accepted under a token
	Rejected  int // those that a guard rejected
	Unknown   int // those, and acquires, with an unknown outcome
	Unclaimed int // those without a token, which cannot be judged

	Findings
}

// String returns a summary, with one line for each listed violation.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events: %d grants of %d names; %d accepted, %d rejected on %d resources; %d unknown, %d without a claim; ",
		r.Events, r.Grants, r.Names, r.Accepted, r.Rejected, r.Resources, r.Unknown, r.Unclaimed)
	r.list(&b)
	return b.String()
}

// A mark is a token with the event that set it.
type mark struct {
	token interlock.Token
	owner string
	op    string // its cause, such as "write under token"
	at    Ref
}

func refOf(e Event) Ref { return Ref{Writer: e.Writer, Seq: e.Seq, Lane: e.Lane} }

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
