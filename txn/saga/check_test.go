package saga

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestLongDefinitionsAreChecked in time that grows as they do: a check that compares each
// step with all others takes minutes for these.
func TestLongDefinitionsAreChecked(t *testing.T) {
	var steps []Stage[int]
	for i := range 200_000 {
		steps = append(steps, Step(fmt.Sprint("step", i), func(context.Context, int) (int, error) { return 0, nil }).Uncompensable())
	}
	began := time.Now()
	d := Define("long", steps...)
	if err := d.defined().check(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}
