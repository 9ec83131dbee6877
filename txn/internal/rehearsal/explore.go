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
	// Base is the trial that all kits have.
	Base() *Trial[K]
	// Play plays the transaction, in a world of its own.
	Play()
	// Judge says what it shows to be wrong; nil is nothing. Reference is the world after
	// an undisturbed transaction; nil is not known yet.
	Judge(reference []string) *F
	// Plain is why the trial, which was undisturbed, is none to go by.
	Plain() error
}

// An Explorer plays plots, and keeps the first finding of each kind and name.
type Explorer[K ~string, F any, R Played[K, F]] struct {
	T        *testing.T
	RealTime bool // the trials run by the clock of the machine
	New      func(Plot[K]) R
	Key      func(F) (kind K, name string) // a finding without a kind is not kept

	Initial   []string // the world before a transaction
	Reference []string // and after one that was undisturbed
	Found     []F
	Runs      int
}

// Play plays a plot.
func (e *Explorer[K, F, R]) Play(p Plot[K]) R {
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

// Undisturbed plays the transaction twice, and notes what is to be expected of it. It is
// over if something was found.
func (e *Explorer[K, F, R]) Undisturbed(p Plot[K]) (first R, over bool, err error) {
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
		return first, true, fmt.Errorf("two undisturbed runs differ (create each scene new, or Ignore what differs):\n%s", text)
	}
	return first, false, nil
}

// First plays plots until one of them shows something.
func (e *Explorer[K, F, R]) First(plots ...Plot[K]) error {
	before := len(e.Found)
	for _, p := range plots {
		if _, err := e.try(p); err != nil || len(e.Found) > before {
			return err
		}
	}
	return nil
}

// Crashes plays a plot with a coordinator that crashes at each point.
func (e *Explorer[K, F, R]) Crashes(p Plot[K]) error {
	for p.Crash = 1; len(e.Found) == 0; p.Crash++ {
		r, err := e.try(p)
		if err != nil || r.CrashedAt == nil && !r.Hangs {
			return err
		}
	}
	return nil
}

// try plays a plot, and keeps what it shows; one in which nothing crashed that should have
// shows nothing.
func (e *Explorer[K, F, R]) try(p Plot[K]) (*Trial[K], error) {
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

// A Plot is one way in which things go wrong. K is a kit's kind of finding.
type Plot[K ~string] struct {
	Words   string
	Kind    K                   // of what is found then
	Name    string              // of the step or branch of which it is found
	Alone   bool                // it alone is called: the world is looked at around it
	Fate    func(d Deed) Mishap // of each call; nil is none
	Tardy   bool                // the time of what is held is over, and swept, before it is confirmed
	Crash   int                 // at which point the first coordinator does; 0 is at none
	Abandon bool                // nobody runs it again then, but what is past its time is swept
}

// A Deed is a call, by its number among those of its step or branch and operation.
type Deed struct {
	Name      string
	Operation branch.Operation
	N         int // from 1
}

// A Mishap is what goes wrong with a call; the zero value is nothing.
type Mishap struct {
	After  []string // it arrives only once these branches were tried
	Rival  bool     // before it, another process runs the same
	Absent bool     // it does not arrive
	Twice  bool     // it arrives once more
	Late   bool     // after it the first call of the step or branch arrives
	Quits  bool     // after it, the caller of the transaction gives up
	Answer error    // what the engine receives in place of the answer
}

// What befalls calls.
var (
	Refused = Mishap{Absent: true, Answer: branch.Fail(errors.New("the kit refuses it"))}
	Lost    = Mishap{Answer: branch.Unknown(errors.New("the kit loses the answer"))}
	Gone    = Mishap{Absent: true, Answer: branch.Unknown(errors.New("the kit loses the call"))}
)

// Only is a fate that befalls one call.
func Only(which Deed, m Mishap) func(Deed) Mishap {
	return func(d Deed) Mishap {
		if d == which {
			return m
		}
		return Mishap{}
	}
}

// Report tells a finding on several lines: what is wrong, with what (empty if that is not
// known), in which run, its outcome, and how snapshots differ.
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
