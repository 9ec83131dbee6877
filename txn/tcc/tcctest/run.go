package tcctest

import (
	"sync"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// A plot is one way in which things go wrong.
type plot struct {
	words   string
	kind    Kind                        // of what is found then
	branch  string                      // of which it is found
	alone   bool                        // the branch alone is tried: the world is looked at around it
	fate    func(r *run, d deed) mishap // of each call; nil is none
	tardy   bool                        // the time of the holds is over, and swept, before they are confirmed
	crash   int                         // at which point the first engine does; 0 is at none
	abandon bool                        // nobody runs it again then, but what is past its time is swept
}

// A deed is a call, by its number among those of its branch and operation.
type deed struct {
	branch    string
	operation branch.Operation
	n         int // from 1
}

// A mishap is what goes wrong with a call; the zero value is nothing.
type mishap struct {
	after  []string // it arrives only once these branches were tried
	rival  bool     // before it, somebody else runs the same
	absent bool     // it does not arrive
	twice  bool     // it arrives once more
	late   bool     // behind it the first try of the branch arrives
	quits  bool     // behind it, the caller of the transaction gives up
	answer error    // what the engine hears in place of the answer
}

// A run is a transaction played by a plot.
type run struct {
	Scene
	plot

	branches []string // of the transaction, as far as they are known
	turns    chan struct{}
	life     *rehearsal.Life
	quit     func() // ends the context of Run
	rival    func() // has somebody else run the same
	rivalled chan struct{}

	mu       sync.Mutex
	calls    map[deed]int // how many, of deeds without their number
	tries    []string     // the branches that were tried in this life
	reached  []string     // the resources that were called
	answers  []answer
	last     string // the branch of the last call
	competed bool
	wrong    error       // what the invariant has said first
	wronged  branch.Call // and behind which call
	try      func()      // what may arrive late
	err      error       // why there is nothing to judge

	initial, before, after, late, final []string // the world, and that around the branch which is alone
	seenBefore, seenAfter               []string // what others see around its try
	freed                               string   // what a sweep has changed that was not told to
	swept                               bool
	sweeping                            error          // of the last sweep
	told                                []tcc.Decision // by all lives
	said                                error          // by the last Run
	outcome                             tcc.Outcome    // zero: nothing was decided
	hangs                               bool           // what was called does not return
	crashedAt                           *rehearsal.Point
}

// An answer is what a method of a user's resource has returned.
type answer struct {
	transaction, branch string
	operation           branch.Operation
	err                 error
}

// refuses reports whether it says that it never will.
func (a answer) refuses() bool {
	class, _ := branch.ClassOf(a.err)
	return a.err != nil && class == branch.ClassFail
}

// play runs a plot.
func (e *explorer) play(p plot) *run {
	e.runs++
	r := &run{plot: p, branches: e.branches, calls: map[deed]int{}}
	if e.realTime {
		r.play(e.scene())
		return r
	}
	r.hangs = rehearsal.Bubble(e.t, func() { r.play(e.scene()) }) || r.hangs
	return r
}

// play has engines go on with the transaction until one does not crash.
func (r *run) play(s Scene) {
	r.rivalled, r.turns = make(chan struct{}), make(chan struct{}, 1) // of the bubble
	if r.Scene, r.err = made(s); r.err != nil {
		return
	}
	r.stage.run = r
	if r.initial = r.see(); r.err != nil {
		return
	}
	store := memory.NewJournal()
	for n := int64(1); r.err == nil && !r.hangs; n++ {
		r.life, r.tries = &rehearsal.Life{}, nil
		if n == 1 {
			r.life.Chosen = r.crash
		}
		if r.err = r.live(store, n); r.err != nil || r.life.Crashed() == nil {
			break
		}
		r.crashedAt = r.life.Crashed()
	}
	r.final = r.see()
	if wrong := r.broken(); wrong != nil && r.wrong == nil {
		r.wrong = wrong
	}
}

// see is the world as it is.
func (r *run) see() []string { return r.lines(r.Snapshot) }

// visible is what others see of it.
func (r *run) visible() []string {
	if r.Visible == nil {
		return nil
	}
	return r.lines(r.Visible)
}

func (r *run) lines(show func() any) []string {
	lines, err := rehearsal.Lines(show(), r.Ignore)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.err == nil {
		r.err = err
	}
	return lines
}
