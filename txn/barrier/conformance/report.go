package conformance

import (
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A Report is the result of a run.
type Report struct {
	Plays    int       // begun, one account each
	Messages int       // sent, including repeated ones
	Failures []Failure // at most one for each play, in their order; empty means passed
}

// Err joins the failures; nil if there are none.
func (r Report) Err() error {
	var all []error
	for _, f := range r.Failures {
		all = append(all, &f)
	}
	return errors.Join(all...)
}

// A Failure is a deviation of a participant from the expected.
type Failure struct {
	Protocol  Protocol
	Play      string             // its name; empty for one of all sequences
	Sequence  []branch.Operation // all messages of the play, in the order of sending
	Position  int                // of the message in it, from 1
	Operation branch.Operation   // of the message
	Expected  string             // answers and effects
	Got       string
}

// Error returns all of f in one line.
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

// String returns the same as Error.
func (f Failure) String() string { return f.Error() }

// told formats an answer and effects.
func told(answer string, e Effects) string {
	return fmt.Sprintf("%s (held %d, confirmed %d)", answer, e.Held, e.Confirmed)
}
