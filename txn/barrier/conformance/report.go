package conformance

import (
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A Report is what came of a run.
type Report struct {
	Plays    int       // that were begun: one account each
	Messages int       // that were sent, repeated ones included
	Failures []Failure // at most one of each play, in their order; none is good
}

// Err joins the failures; nil if there are none.
func (r Report) Err() error {
	var all []error
	for _, f := range r.Failures {
		all = append(all, &f)
	}
	return errors.Join(all...)
}

// A Failure is where a participant did something else than expected.
type Failure struct {
	Protocol  Protocol
	Play      string             // what is played; empty for one of all sequences
	Sequence  []branch.Operation // all messages of the play, in the order in which they are sent
	Position  int                // of the message in it, from 1
	Operation branch.Operation   // of the message
	Expected  string             // answers and effects
	Got       string
}

// Error is one line of all that.
func (f *Failure) Error() string {
	var names []string
	for _, o := range f.Sequence {
		names = append(names, string(o))
	}
	name := strings.Join(names, ", ")
	if f.Play != "" {
		name = f.Play + " (" + name + ")"
	}
	return fmt.Sprintf("%s: %s: message %d, %s: expected %s, got %s", f.Protocol, name, f.Position, f.Operation, f.Expected, f.Got)
}

// String is Error.
func (f Failure) String() string { return f.Error() }

// told is what a participant answered and did, as people read it.
func told(answer string, e Effects) string {
	return fmt.Sprintf("%s (held %d, confirmed %d)", answer, e.Held, e.Confirmed)
}
