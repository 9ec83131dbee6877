package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// A Definition is a saga with input I. [New] validates it.
type Definition[I any] struct {
	plan plan
}

// Defined is a [Definition] of any input type.
type Defined interface{ defined() plan }

// Define returns a saga of stages in their order. Its name is unique in the engine, 1 to 200
// bytes. A stage is an [Action], a [Parallel] group or a [Sleep].
func Define[I any](name string, stages ...Stage[I]) Definition[I] {
	groups := groupsOf(stages)
	return Definition[I]{plan{name: name, fixed: stagesOf(groups), known: slices.Concat(groups...)}}
}

// DefineList returns a saga whose stages are computed from its input: a list of variable length,
// or one step under several keys ([Action.At], [Action.Named]). The function must be
// deterministic. It runs when the saga is started, where its error is returned and nothing
// begins, and in each process that takes over. Known has every step with an undo that may occur
// in a list: undos are found by name, without the list.
func DefineList[I any](name string, stages func(input I) ([]Stage[I], error), known ...Stage[I]) Definition[I] {
	p := plan{name: name, known: slices.Concat(groupsOf(known)...)}
	p.list = func(text json.RawMessage) ([]stage, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return nil, fmt.Errorf("read the input of saga %q: %w", name, err)
		}
		if stages == nil {
			return nil, nil
		}
		list, err := stages(input)
		return stagesOf(groupsOf(list)), err
	}
	return Definition[I]{p}
}

func groupsOf[I any](stages []Stage[I]) (groups [][]step) {
	var none I
	for _, s := range stages {
		if s == nil {
			groups = append(groups, []step{{}})
			continue
		}
		groups = append(groups, s.of(none))
	}
	return groups
}

// Parallel returns a stage whose steps are called concurrently. They are undone concurrently,
// too.
func Parallel[I any](steps ...Stage[I]) Stage[I] { return group[I](steps) }

type group[I any] []Stage[I]

func (g group[I]) of(I) []step {
	all := slices.Concat(groupsOf(g)...)
	for i := range all {
		all[i].grouped = true
	}
	return all
}

// Sleep returns a stage that waits for d. A saga that waits for long is not in memory. The
// name is unique among the steps of the saga. The time counts from the start of the stage, by
// the coordinator's clock. The saga's own timeout continues, and can abort a wait before the
// pivot.
func Sleep[I any](name string, d time.Duration) Stage[I] {
	return sleep[I]{step{name: name, key: name, sleep: true, wait: d}}
}

type sleep[I any] struct{ s step }

func (s sleep[I]) of(I) []step { return []step{s.s} }

// Timeout bounds a saga until its pivot is sent, counted from its start by the clock of the
// starting process. Then the saga is aborted. 0 means no bound.
func (d Definition[I]) Timeout(t time.Duration) Definition[I] { d.plan.timeout = t; return d }

// TimeoutOf sets a [Definition.Timeout] that depends on the input. If the function returns 0,
// the definition's applies. The function runs once, when the saga is started.
func (d Definition[I]) TimeoutOf(of func(input I) time.Duration) Definition[I] {
	d.plan.timeoutOf = func(text json.RawMessage) (time.Duration, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return 0, fmt.Errorf("read the input of saga %q: %w", d.plan.name, err)
		}
		return of(input), nil
	}
	return d
}

func (d Definition[I]) defined() plan { return d.plan }
