package saga

import (
	"context"
	"encoding/json"
	"fmt"
)

// Truth is what a target says of a step's effect.
type Truth int

// The truths.
const (
	Unsure  Truth = iota // it cannot be said
	Present              // it is there
	Absent               // it is not
)

// String is the truth in lower case.
func (t Truth) String() string {
	switch t {
	case Present:
		return "present"
	case Absent:
		return "absent"
	}
	return "unsure"
}

// Check says how to find out whether the step's effect is there, for
// [Engine.Reconcile]. It is called with the output of the step, or nil if it was not
// done; [From] tells the saga and the step. It changes nothing.
func (a Action[I, O]) Check(check func(ctx context.Context, input I, output *O) (Truth, error)) Action[I, O] {
	if a.s.truth = nil; check == nil {
		return a
	}
	a.s.truth = func(ctx context.Context, text, out json.RawMessage) (Truth, error) {
		var input I
		var output *O
		err := json.Unmarshal(text, &input)
		if err == nil && out != nil {
			output = new(O)
			err = json.Unmarshal(out, output)
		}
		if err != nil {
			return Unsure, fmt.Errorf("read what the check of step %q needs: %w", a.s.key, err)
		}
		return check(ctx, input, output)
	}
	return a
}

// Repair declares that what a [Action.Check] finds to be wrong may be fixed by
// calling the action, or the undo, once more under its key.
func (a Action[I, O]) Repair() Action[I, O] { a.s.repair = true; return a }

// Finding is a step whose effect is not what its saga has ended with.
type Finding struct {
	ID, Type string
	State    State  // in which the saga has ended
	Step     string // its key
	Want     Truth  // what the journal says: Present, or Absent
	Got      Truth  // what the target says, after a repair if there was one
	Repaired bool   // it was fixed, and Got is what is wanted
	Err      error  // of the check or of the repair; nil if they had none
}
