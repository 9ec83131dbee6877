package countermeasure

import (
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/internal/failure"
)

// A Step declares how a step of a saga changes quantities that others rely on: credit, free
// seats, goods in stock. Quantities are names of the user's choice.
type Step struct {
	Name string
	// Pivot means that the saga cannot be undone after this step. At most one step has it.
	Pivot bool
	// Increases are quantities that the step adds to, for use by others; Decreases are
	// quantities that it takes from.
	Increases, Decreases []string
}

// A Misplacement is a step whose position lets others see more of a quantity than is certain.
type Misplacement struct {
	Step     string
	Quantity string
	Why      string // a sentence with the remedy
}

// String returns the step and the reason.
func (m Misplacement) String() string { return fmt.Sprintf("step %q: %s", m.Step, m.Why) }

// CheckOrder checks the pessimistic view: while a saga is under way, others see at most as much
// of each quantity as is certain. A step that increases a quantity before the pivot is misplaced,
// because others may use what its undo takes back. A step that decreases a quantity after the
// pivot is misplaced, because others may use up the quantity when the saga cannot go back.
// Without a pivot every step counts as before it. Parallel steps may be in any order.
//
// It reads the steps' declarations only: call it in a test of the saga's definition.
// Contradictory declarations are a Bug.
func CheckOrder(steps ...Step) (found []Misplacement, err error) {
	pivot, err := pivotOf(steps)
	if err != nil {
		return nil, err
	}
	for i, s := range steps {
		if i < pivot {
			for _, q := range s.Increases {
				found = append(found, Misplacement{s.Name, q, fmt.Sprintf(
					"it increases %q, which others may have used when it is undone: move it after the pivot", q)})
			}
		}
		if i > pivot {
			for _, q := range s.Decreases {
				found = append(found, Misplacement{s.Name, q, fmt.Sprintf(
					"it decreases %q, of which there may be too little when nothing can be undone any more: move it before the pivot", q)})
			}
		}
	}
	return found, nil
}

// pivotOf returns the index of the pivot, or the number of steps if there is none.
func pivotOf(steps []Step) (pivot int, err error) {
	const op = "check order of steps"
	pivot = len(steps)
	seen := map[string]bool{}
	for i, s := range steps {
		switch {
		case s.Name == "":
			return 0, failure.Bug(op, "", "step %d has no name", i+1)
		case seen[s.Name]:
			return 0, failure.Bug(op, s.Name, "the name is used twice; names must be unique")
		case s.Pivot && pivot < len(steps):
			return 0, failure.Bug(op, s.Name, "%q is already the pivot", steps[pivot].Name)
		}
		for _, q := range s.Increases {
			if slices.Contains(s.Decreases, q) {
				return 0, failure.Bug(op, s.Name, "it both increases and decreases %q", q)
			}
		}
		if slices.Contains(s.Increases, "") || slices.Contains(s.Decreases, "") {
			return 0, failure.Bug(op, s.Name, "a quantity has no name")
		}
		seen[s.Name] = true
		if s.Pivot {
			pivot = i
		}
	}
	return pivot, nil
}
