package rehearsal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/branch"
)

// Played is a [Trial] of a kit, with findings F.
type Played[K ~string, F any] interface {
	// Base returns the common part of all kits.
	Base() *Trial[K]
	// Play runs the transaction in a new world.
	Play()
	// Judge returns what is wrong, or nil. Reference is the world after a transaction without faults; nil if it is not known yet.
	Judge(reference []string) *F
	// Plain returns why a trial without faults is no reference.
	Plain() error
}

// An Explorer runs scenarios, and keeps the first finding of each kind and name.
type Explorer[K ~string, F any, R Played[K, F]] struct {
	T        *testing.T
	RealTime bool // trials use the clock of the machine
	New      func(Scenario[K]) R
	Key      func(F) (kind K, name string) // a finding without a kind is not kept

	Initial   []string // the world before a transaction
	Reference []string // and after a run without faults
	Found     []F
	Runs      int
}

// Play runs a scenario.
func (e *Explorer[K, F, R]) Play(p Scenario[K]) R {
	e.Runs++
	r := e.New(p)
	if e.RealTime {
		r.Play()
		return r
	}
	if Bubble(e.T, r.Play) {
		r.Base().Hangs = true
	}
	return r
}

// WithoutFaults runs the transaction twice, and keeps the expected world. over is true if something was
// found.
func (e *Explorer[K, F, R]) WithoutFaults(p Scenario[K]) (first R, over bool, err error) {
	first = e.Play(p)
	if err := first.Base().Err; err != nil {
		return first, true, err
	}
	if e.Keep(first.Judge(nil)); len(e.Found) > 0 {
		return first, true, nil
	}
	if err := first.Plain(); err != nil {
		return first, true, err
	}
	e.Initial, e.Reference = first.Base().Initial, first.Base().Final
	second := e.Play(p)
	if err := second.Base().Err; err != nil {
		return first, true, err
	}
	if text := Diff(e.Reference, second.Base().Final); text != "" || second.Plain() != nil {
		return first, true, fmt.Errorf("two runs without faults differ (create each scene new, or Ignore what differs):\n%s", text)
	}
	return first, false, nil
}

// First runs scenarios until one has a finding.
func (e *Explorer[K, F, R]) First(scenarios ...Scenario[K]) error {
	before := len(e.Found)
	for _, p := range scenarios {
		if _, err := e.try(p); err != nil || len(e.Found) > before {
			return err
		}
	}
	return nil
}

// Crashes runs a scenario with a crash of the coordinator at each point.
func (e *Explorer[K, F, R]) Crashes(p Scenario[K]) error {
	for p.Crash = 1; len(e.Found) == 0; p.Crash++ {
		r, err := e.try(p)
		if err != nil || r.CrashedAt == nil && !r.Hangs {
			return err
		}
	}
	return nil
}

// try runs a scenario, and keeps its finding. A scenario whose crash did not happen has none.
func (e *Explorer[K, F, R]) try(p Scenario[K]) (*Trial[K], error) {
	r := e.Play(p)
	t := r.Base()
	if t.Err != nil {
		return t, t.Err
	}
	if text := Diff(e.Initial, t.Initial); text != "" {
		return t, fmt.Errorf("the worlds of two scenes differ before anything was done (create each new):\n%s", text)
	}
	if p.Crash == 0 || t.CrashedAt != nil || t.Hangs {
		e.Keep(r.Judge(e.Reference))
	}
	return t, nil
}

// Keep keeps a finding, unless there is one of its kind and name.
func (e *Explorer[K, F, R]) Keep(f *F) {
	if f == nil {
		return
	}
	kind, name := e.Key(*f)
	known := slices.ContainsFunc(e.Found, func(g F) bool { k, n := e.Key(g); return k == kind && n == name })
	if kind != "" && !known {
		e.Found = append(e.Found, *f)
	}
}

// A Scenario is one way in which a transaction can fail. K is a kit's kind of finding.
type Scenario[K ~string] struct {
	Words       string
	Kind        K                    // of the finding
	Name        string               // step or branch of the finding
	Alone       bool                 // only it is called: the world is compared around it
	FaultOf     func(d CallID) Fault // of each call; nil means none
	LateConfirm bool                 // holds expire and are swept before they are confirmed
	Crash       int                  // the point where the first coordinator crashes; 0 means none
	Abandon     bool                 // after it the transaction is not run again; expired holds are swept
}

// A CallID is a call, numbered among those of its step or branch and operation.
type CallID struct {
	Name      string
	Operation branch.Operation
	N         int // from 1
}

// A Fault is injected into a call; the zero value is none.
type Fault struct {
	After  []string // the call arrives only after the tries of these branches
	Rival  bool     // before it, another process runs the same
	Absent bool     // the call does not arrive
	Twice  bool     // the call arrives twice
	Late   bool     // after it, the first call of the step or branch arrives
	Quits  bool     // after it, the caller of the transaction gives up
	Answer error    // what the engine receives instead of the answer
}

// Faults of calls.
var (
	Refused = Fault{Absent: true, Answer: branch.Fail(errors.New("the kit refuses it"))}
	Lost    = Fault{Answer: branch.Unknown(errors.New("the kit loses the answer"))}
	Gone    = Fault{Absent: true, Answer: branch.Unknown(errors.New("the kit loses the call"))}
)

// Only injects a fault into one call.
func Only(which CallID, m Fault) func(CallID) Fault {
	return func(d CallID) Fault {
		if d == which {
			return m
		}
		return Fault{}
	}
}

// Report formats a finding: its kind, its step or branch (may be empty), the scenario, the outcome, and
// the difference of snapshots.
func Report(kind, with, scenario, problem, diff string) string {
	var b strings.Builder
	b.WriteString(kind)
	if with != "" {
		b.WriteString(": " + with)
	}
	b.WriteString("\n  when: " + scenario + "\n  then: " + problem)
	for line := range strings.Lines(diff) {
		b.WriteString("\n    " + strings.TrimRight(line, "\n"))
	}
	return b.String()
}
