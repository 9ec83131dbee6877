package sagatest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// explorer plays one scene.
type explorer struct {
	t         *testing.T
	build     func() set
	realTime  bool
	initial   []string // the world before a saga
	reference []string // and after one that has succeeded
	steps     []saga.Progress
	found     []Finding
	runs      int
}

// explore plays all plots.
func (e *explorer) explore() ([]Finding, error) {
	e.realTime = e.build().realTime
	if over, err := e.undisturbed(); over || err != nil {
		return e.found, err
	}
	for _, s := range e.steps {
		if err := e.forward(s); err != nil {
			return e.found, err
		}
		if err := e.backward(s); err != nil {
			return e.found, err
		}
	}
	if len(e.found) > 0 { // the rest would show the same once more
		return e.found, nil
	}
	plots := append([]plot{{words: "all goes well", kind: UndoNeedsOutput}}, e.refusals()...)
	for _, p := range plots[1:] {
		if err := e.try(p); err != nil {
			return e.found, err
		}
	}
	for _, p := range plots {
		if err := e.crashes(p); err != nil {
			return e.found, err
		}
	}
	return e.found, nil
}

// undisturbed plays the saga twice, and learns what is to be expected of it. It is
// over if it does not end by itself.
func (e *explorer) undisturbed() (over bool, err error) {
	p := plot{words: "nothing goes wrong"}
	first := e.play(p)
	if first.err != nil {
		return true, first.err
	}
	if f := first.judge(nil); f != nil && (f.Kind == NeverEnds || f.Kind == StepBehindPivotRefuses) {
		e.found = append(e.found, *f)
		return true, nil
	}
	if err := first.plain(); err != nil {
		return true, err
	}
	e.initial, e.reference = first.initial, first.final
	second := e.play(p)
	if second.err != nil {
		return true, second.err
	}
	if text := rehearsal.Diff(e.reference, second.final); text != "" || second.state != saga.Succeeded {
		return true, fmt.Errorf("two undisturbed runs differ (make each scene afresh, or Ignore what differs):\n%s", text)
	}
	for _, s := range first.steps {
		if s.Until.IsZero() {
			e.steps = append(e.steps, s)
		}
	}
	return false, nil
}

// try plays a plot, and keeps what it shows.
func (e *explorer) try(p plot) error {
	r := e.play(p)
	if r.err != nil {
		return r.err
	}
	if text := rehearsal.Diff(e.initial, r.initial); text != "" {
		return fmt.Errorf("the worlds of two scenes differ before anything was done (make each afresh):\n%s", text)
	}
	e.keep(r.judge(e.reference))
	return nil
}

// keep keeps the first finding of each kind and step.
func (e *explorer) keep(f *Finding) {
	if f != nil && !e.has(f.Kind, f.Step) {
		e.found = append(e.found, *f)
	}
}

func (e *explorer) has(kind Kind, step string) bool {
	return slices.ContainsFunc(e.found, func(f Finding) bool { return f.Kind == kind && f.Step == step })
}

// crashes plays a plot with an engine that crashes at each point.
func (e *explorer) crashes(p plot) error {
	for p.crash = 1; len(e.found) == 0; p.crash++ {
		r := e.play(p)
		if r.err != nil {
			return r.err
		}
		if r.crashedAt == nil {
			return nil
		}
		e.keep(r.judge(e.reference))
	}
	return nil
}

// pivotAt is the stage of the pivot, or one behind all stages.
func (e *explorer) pivotAt() int {
	i := slices.IndexFunc(e.steps, func(s saga.Progress) bool { return s.Pivot })
	if i < 0 {
		return math.MaxInt
	}
	return e.steps[i].Stage
}

var (
	errLost    = errors.New("sagatest: the answer is lost")
	errGone    = errors.New("sagatest: nobody answers")
	errRefused = errors.New("sagatest: it is refused")
)

// What befalls calls.
var (
	refused = mishap{absent: true, answer: saga.Fail(errRefused)}
	lost    = mishap{answer: saga.Unknown(errLost)}
	gone    = mishap{absent: true, answer: saga.Unknown(errGone)}
)
