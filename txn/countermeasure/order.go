package countermeasure

import (
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/internal/failure"
)

// A Step is what one step of a saga does to quantities that others rely on: credit, free
// seats, goods in stock. They are names of the user's choice.
type Step struct {
	Name string
	// Pivot: when it is done the saga goes forward only. At most one step is.
	Pivot bool
	// Increases are what others may use more of once the step is done; Decreases what
	// they may use less of.
	Increases, Decreases []string
}

// A Misplacement is a step that stands where others are promised too much.
type Misplacement struct {
	Step     string
	Quantity string
	Why      string // a sentence, which says what to do
}

// String names the step.
func (m Misplacement) String() string { return fmt.Sprintf("step %q: %s", m.Step, m.Why) }

// CheckOrder checks that the steps of a saga, in their order, let others see less than
// there is while it is under way, and never more: the pessimistic view. A step that
// increases a quantity before the pivot is misplaced, because others may use what its
// undo takes back; and so is one that decreases a quantity after the pivot, because
// others see it higher for so long, and use it up, when the saga has no way back. In
// a saga without a pivot every step is before it. Parallel steps may come in any order.
//
// It looks at what steps declare, and at nothing else: call it in a test of the saga's
// definition. An error, of kind Bug, says that the declarations make no sense.
func CheckOrder(steps ...Step) (found []Misplacement, err error) {
	pivot, err := pivotOf(steps)
	if err != nil {
		return nil, err
	}
	for i, s := range steps {
		if i < pivot {
			for _, q := range s.Increases {
				found = append(found, Misplacement{s.Name, q, fmt.Sprintf(
					"it increases %q, which others may have used when it is undone: move it behind the pivot", q)})
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

// pivotOf is the pivot's index, and that behind the last step if there is none.
func pivotOf(steps []Step) (pivot int, err error) {
	const op = "check order of steps"
	pivot = len(steps)
	seen := map[string]bool{}
	for i, s := range steps {
		switch {
		case s.Name == "":
			return 0, failure.Bug(op, "", "step %d has no name", i+1)
		case seen[s.Name]:
			return 0, failure.Bug(op, s.Name, "there are two steps of that name")
		case s.Pivot && pivot < len(steps):
			return 0, failure.Bug(op, s.Name, "%q is the pivot already", steps[pivot].Name)
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
