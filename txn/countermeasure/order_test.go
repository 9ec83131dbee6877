package countermeasure_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// TestCheckOrder: increases before the pivot and decreases after it are misplaced, at the pivot
// neither is. Without a pivot all steps count as before it.
func TestCheckOrder(t *testing.T) {
	up := func(name string) countermeasure.Step {
		return countermeasure.Step{Name: name, Increases: []string{"credit"}}
	}
	down := func(name string) countermeasure.Step {
		return countermeasure.Step{Name: name, Decreases: []string{"credit", "seats"}}
	}
	pivot := func(s countermeasure.Step) countermeasure.Step { s.Pivot = true; return s }
	for _, c := range []struct {
		name  string
		steps []countermeasure.Step
		found string
	}{
		{"nothing", nil, ""},
		{"in order", []countermeasure.Step{down("take"), pivot(down("pay")), up("refund"), {Name: "mail"}}, ""},
		{"an increase that is the pivot", []countermeasure.Step{down("take"), pivot(up("give"))}, ""},
		{"an increase before the pivot", []countermeasure.Step{up("give"), down("take"), pivot(countermeasure.Step{Name: "pay"})}, "give credit"},
		{"a decrease after the pivot", []countermeasure.Step{pivot(countermeasure.Step{Name: "pay"}), down("take")}, "take credit, take seats"},
		{"no pivot", []countermeasure.Step{down("take"), up("give")}, "give credit"},
		{"both", []countermeasure.Step{up("give"), pivot(countermeasure.Step{Name: "pay"}), down("take")}, "give credit, take credit, take seats"},
	} {
		found, err := countermeasure.CheckOrder(c.steps...)
		var got []string
		for _, m := range found {
			got = append(got, m.Step+" "+m.Quantity)
			if !strings.Contains(m.String(), m.Step) || !strings.Contains(m.String(), m.Quantity) || !strings.Contains(m.Why, "move it") {
				t.Errorf("%s: %v", c.name, m)
			}
		}
		if err != nil || strings.Join(got, ", ") != c.found {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.found)
		}
	}
	for name, steps := range map[string][]countermeasure.Step{
		"no name":               {{}},
		"twice":                 {up("a"), up("a")},
		"two pivots":            {pivot(up("a")), pivot(up("b"))},
		"both ways":             {{Name: "a", Increases: []string{"x"}, Decreases: []string{"x"}}},
		"no name of a quantity": {{Name: "a", Decreases: []string{""}}},
	} {
		if _, err := countermeasure.CheckOrder(steps...); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: %v", name, err)
		}
	}
}
