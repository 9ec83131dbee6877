package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// A Definition is a saga whose input is an I. It is validated when an engine is
// built of it.
type Definition[I any] struct {
	plan plan
}

// Defined is a [Definition] of any input.
type Defined interface{ defined() plan }

// Define makes a saga of a name that is unique in its engine, 1 to 200 bytes, of
// stages in their order. A stage is an [Action], a [Parallel] group or a [Sleep].
func Define[I any](name string, stages ...Stage[I]) Definition[I] {
	groups := groupsOf(stages)
	return Definition[I]{plan{name: name, fixed: stagesOf(groups), known: slices.Concat(groups...)}}
}

// DefineList makes a saga whose stages are computed from its input: a list that is as
// long as the input says, the same step under several keys ([Action.At],
// [Action.Named]). The function must give the same list whenever it has the same
// input: it is called when the saga is started, where its error is passed on and
// nothing is begun, and by each process that goes on with it. Known is every step
// with an undo that can come up in a list: undos are found there by their names,
// without the list.
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

// Parallel is a stage of steps that are called at the same time, and undone so. The
// saga goes on when all are done; if one is given up it is aborted, and those that
// may have happened are undone. A pivot and a wait stand alone, not in a group.
func Parallel[I any](steps ...Stage[I]) Stage[I] { return group[I](steps) }

type group[I any] []Stage[I]

func (g group[I]) of(I) []step {
	all := slices.Concat(groupsOf(g)...)
	for i := range all {
		all[i].grouped = true
	}
	return all
}

// Sleep is a stage that waits, for days if it must: nothing of the saga is in memory
// meanwhile. The name is unique among the steps of the saga. Time is counted from
// the moment when the stage is reached, by the coordinator's clock. The saga's own
// timeout goes on, and can abort a wait before the pivot.
func Sleep[I any](name string, d time.Duration) Stage[I] {
	return sleep[I]{step{name: name, key: name, sleep: true, wait: d}}
}

type sleep[I any] struct{ s step }

func (s sleep[I]) of(I) []step { return []step{s.s} }

// Timeout bounds a saga up to the moment when its pivot is sent, counted from its
// start by the clock of the process that starts it: after that time it is aborted. 0, as
// without it, is no bound.
func (d Definition[I]) Timeout(t time.Duration) Definition[I] { d.plan.timeout = t; return d }

// TimeoutOf is [Definition.Timeout] where the input says how long a saga may take; zero
// is the definition's. It is asked once, when the saga is started.
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
