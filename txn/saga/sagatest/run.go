package sagatest

import (
	"sync"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// A plot is one way in which things go wrong.
type plot struct {
	words string
	kind  Kind                              // of what is found then
	step  string                            // of which it is found
	alone bool                              // of its stage the step alone is called: the world is looked at around it
	fate  func(step string, do deed) mishap // of each call; nil is none
	crash int                               // at which point the first engine does; 0 is at none
}

// A deed is a call of an action or an undo, by its number among those of its step.
type deed struct {
	undo bool
	n    int // from 1
}

// A mishap is what goes wrong with a call; the zero value is nothing.
type mishap struct {
	absent bool  // it does not arrive
	twice  bool  // it arrives once more
	late   bool  // behind it an action of the step arrives
	answer error // what the engine hears in place of the answer
}

// A run is a saga played by a plot.
type run struct {
	set
	plot

	mu      sync.Mutex
	calls   map[string]map[bool]int // of each step, of its action (false) and its undo (true)
	answers []answer
	last    string // the step of the last call
	action  func() // what may arrive late
	err     error  // why there is nothing to judge

	initial, before, after, late, final []string // the world, and that around the step which is alone
	steps                               []saga.Progress
	state                               saga.State
	reason                              string
	hangs                               bool // what was called does not return
	crashedAt                           *rehearsal.Point
}

// An answer is what a user's action or undo has returned.
type answer struct {
	step string
	undo bool
	err  error
}

// play runs a plot.
func (e *explorer) play(p plot) (r *run) {
	e.runs++
	r = &run{plot: p, calls: map[string]map[bool]int{}}
	if e.realTime {
		r.play(e.build())
		return r
	}
	r.hangs = rehearsal.Bubble(e.t, func() { r.play(e.build()) }) || r.hangs
	return r
}

// play has engines go on with the saga until one does not crash.
func (r *run) play(s set) {
	r.set = s
	if r.initial = r.see(); r.err != nil {
		return
	}
	store := memory.NewJournal()
	for n := int64(1); r.err == nil; n++ {
		l := &rehearsal.Life{}
		if n == 1 {
			l.Chosen = r.crash
		}
		if err := r.live(store, l, n); err != nil {
			r.err = err
			return
		}
		if l.Crashed() == nil {
			break
		}
		r.crashedAt = l.Crashed()
	}
	r.final = r.see()
}

// see is the world as it is.
func (r *run) see() []string {
	lines, err := r.look()
	if err != nil && r.err == nil {
		r.err = err
	}
	return lines
}
