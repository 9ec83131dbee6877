package tcctest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// explorer plays one scene.
type explorer struct {
	t         *testing.T
	scene     func() Scene
	realTime  bool
	sweeps    bool
	shows     bool
	initial   []string // the world before a transaction
	reference []string // and after one that was confirmed
	branches  []string
	found     []Finding
	runs      int
}

// explore plays all plots.
func (e *explorer) explore() ([]Finding, error) {
	s := e.scene()
	e.realTime, e.sweeps, e.shows = s.RealTime, s.Sweep != nil, s.Visible != nil
	if over, err := e.undisturbed(); over || err != nil {
		return e.found, err
	}
	for _, b := range e.branches {
		if err := e.branch(b); err != nil {
			return e.found, err
		}
	}
	return e.found, e.together()
}

// branch plays what can befall one branch.
func (e *explorer) branch(b string) error {
	for _, plots := range e.forward(b) {
		if err := e.first(plots...); err != nil {
			return err
		}
	}
	plain, others := e.backward(b)
	before := len(e.found)
	if err := e.first(plain); err != nil || len(e.found) > before {
		return err
	}
	for _, plots := range others {
		if plots[0].kind == TryVisible && !e.shows {
			continue
		}
		if err := e.first(plots...); err != nil {
			return err
		}
	}
	return nil
}

// together plays what befalls all branches at once. It is over with the first finding:
// the rest would show the same once more.
func (e *explorer) together() error {
	plots := append([]plot{{words: "all goes well", kind: OutcomeDiffers}}, e.refusals()...)
	whole := append(slices.Clone(plots[1:]), rivalry())
	if e.sweeps {
		whole = append(whole, tardiness())
	}
	for _, p := range whole {
		if len(e.found) > 0 {
			return nil
		}
		if err := e.first(p); err != nil {
			return err
		}
	}
	for _, p := range plots {
		for _, p.abandon = range []bool{false, true} {
			if p.abandon && !e.sweeps {
				continue
			}
			if err := e.crashes(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// undisturbed plays the transaction twice, and learns what is to be expected of it. It
// is over if it does not end by itself, or not with all of its resources.
func (e *explorer) undisturbed() (over bool, err error) {
	p := plot{words: "nothing goes wrong"}
	first := e.play(p)
	if first.err != nil {
		return true, first.err
	}
	if e.keep(first.judge(nil)); len(e.found) > 0 {
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
	if text := rehearsal.Diff(e.reference, second.final); text != "" || second.outcome.State != tcc.Confirmed {
		return true, fmt.Errorf("two undisturbed runs differ (make each scene afresh, or Ignore what differs):\n%s", text)
	}
	e.branches = slices.Compact(slices.Sorted(slices.Values(first.tries)))
	for _, resource := range first.unreached() {
		e.keep(&Finding{Kind: NeverReached, Branch: resource, Scenario: p.words, Problem: "no branch of the transaction is one of this resource"})
	}
	return false, nil
}

// plain is why the undisturbed run is none to go by.
func (r *run) plain() error {
	switch {
	case r.outcome.State != tcc.Confirmed:
		return fmt.Errorf("undisturbed, the transaction has to be confirmed, and is %q: %w", r.outcome.State, errors.Join(r.said, errors.New(r.outcome.Reason)))
	case r.said != nil:
		return fmt.Errorf("undisturbed, the transaction is confirmed, and Run has told: %w", r.said)
	}
	return nil
}

// first plays plots until one of them shows something.
func (e *explorer) first(plots ...plot) error {
	before := len(e.found)
	for _, p := range plots {
		r := e.play(p)
		if err := e.same(r); err != nil {
			return err
		}
		if e.keep(r.judge(e.reference)); len(e.found) > before {
			return nil
		}
	}
	return nil
}

// crashes plays a plot with an engine that crashes at each point.
func (e *explorer) crashes(p plot) error {
	for p.crash = 1; len(e.found) == 0; p.crash++ {
		r := e.play(p)
		if err := e.same(r); err != nil {
			return err
		}
		if r.crashedAt == nil && !r.hangs {
			return nil
		}
		e.keep(r.judge(e.reference))
	}
	return nil
}

// same is an error if a run had nothing to go by.
func (e *explorer) same(r *run) error {
	if r.err != nil {
		return r.err
	}
	if text := rehearsal.Diff(e.initial, r.initial); text != "" {
		return fmt.Errorf("the worlds of two scenes differ before anything was done (make each afresh):\n%s", text)
	}
	return nil
}

// keep keeps the first finding of each kind and branch.
func (e *explorer) keep(f *Finding) {
	if f != nil && !slices.ContainsFunc(e.found, func(g Finding) bool { return g.Kind == f.Kind && g.Branch == f.Branch }) {
		e.found = append(e.found, *f)
	}
}
