package tcctest

import (
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

type (
	plot   = rehearsal.Plot[Kind]
	deed   = rehearsal.Deed
	mishap = rehearsal.Mishap
)

// A run is a transaction played by a plot.
type run struct {
	Scene
	rehearsal.Trial[Kind]
	scene func() Scene

	branches []string // of the transaction, as far as they are known
	turns    chan struct{}
	quit     func() // ends the context of Run
	rival    func() // has somebody else run the same
	rivalled chan struct{}

	// Mu guards these.
	tries    []string // the branches that were tried in this life
	reached  []string // the resources that were called
	competed bool
	wrong    error       // what the invariant has said first
	wronged  branch.Call // and after which call
	try      func()      // what may arrive late

	seenBefore, seenAfter []string // what others see around the try of the branch that is alone
	freed                 string   // what a sweep has changed that was not told to
	swept                 bool
	sweeping              error          // of the last sweep
	told                  []tcc.Decision // by all lives
	said                  error          // by the last Run
	outcome               tcc.Outcome    // zero: nothing was decided
}

// Play has engines go on with the transaction until one does not crash.
func (r *run) Play() {
	r.rivalled, r.turns = make(chan struct{}), make(chan struct{}, 1) // of the bubble
	if r.Scene, r.Err = made(r.scene()); r.Err != nil {
		return
	}
	r.stage.run = r
	r.Show, r.Skip = r.Snapshot, r.Ignore
	store := memory.NewJournal()
	r.Lives(func(n int64) error {
		r.tries = nil
		return r.live(store, n)
	})
	if wrong := r.broken(); wrong != nil && r.wrong == nil {
		r.wrong = wrong
	}
}

// visible is what others see of the world.
func (r *run) visible() []string {
	if r.Visible == nil {
		return nil
	}
	return r.Lines(r.Visible)
}
