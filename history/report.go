package history

import (
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
)

// A Rule is what a history may violate.
type Rule string

// The rules that [CheckTokens] judges by.
const (
	// RuleGrantOrder: a grant's token is above that of every grant of the name
	// that had returned before this one was asked for.
	RuleGrantOrder Rule = "grant order"
	// RuleOneOwner: a token of a name is granted to one owner, and is not handed
	// over to the next holder.
	RuleOneOwner Rule = "one owner"
	// RuleAccessOrder: nothing is accepted under a token if something under a
	// higher one had been accepted, or the mark had been rebased to a higher
	// one, and that had returned, before it was invoked; nor under one below
	// the mark from before the run.
	RuleAccessOrder Rule = "access order"
	// RuleRejection: a guard refuses only what is stale, and has seen only
	// what was presented.
	RuleRejection Rule = "rejection"
)

// A Ref names an event: Seq alone where there is one writer.
type Ref struct {
	Writer int
	Seq    int64
	Lane   string
}

// String is "seq 12 by A".
func (r Ref) String() string { return fmt.Sprintf("seq %d by %s", r.Seq, r.Lane) }

// A Violation is one broken rule.
type Violation struct {
	Rule   Rule
	Key    string // the name or resource
	First  Ref    // what had happened; for a rejection, the invocation that was refused
	Second Ref    // what must not have happened then
	Text   string // both, in one sentence
}

// String is the rule and the sentence.
func (v Violation) String() string { return string(v.Rule) + ": " + v.Text }

// A Report says what was judged. Look at the counts too: a history in which
// nothing was accepted shows nothing.
type Report struct {
	Events    int
	Names     int // locks with a judged grant
	Resources int // resources with a judged access
	Grants    int
	Accepted  int // enters, reads and writes that were accepted under a token
	Rejected  int // of them, refused by a guard
	Unknown   int // of them and of acquires, without a known outcome
	Unclaimed int // of them, made without a token, which nothing can judge

	Findings
}

// String is a summary, with one line for each listed violation.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events: %d grants of %d names; %d accepted, %d rejected on %d resources; %d unknown, %d without a claim; ",
		r.Events, r.Grants, r.Names, r.Accepted, r.Rejected, r.Resources, r.Unknown, r.Unclaimed)
	r.list(&b)
	return b.String()
}

// A mark is a token and the event that set it.
type mark struct {
	token interlock.Token
	owner string
	op    string // what set it, such as "write under token"
	at    Ref
}

func refOf(e Event) Ref { return Ref{Writer: e.Writer, Seq: e.Seq, Lane: e.Lane} }
