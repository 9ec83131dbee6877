package sagatest

import (
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

type (
	plot   = rehearsal.Plot[Kind]
	deed   = rehearsal.Deed
	mishap = rehearsal.Mishap
)

// A run is a saga played by a plot.
type run struct {
	set
	rehearsal.Trial[Kind]
	build func() set

	action func() // what may arrive late
	steps  []saga.Progress
	state  saga.State
	reason string
}

// Play has engines go on with the saga until one does not crash.
func (r *run) Play() {
	r.set = r.build()
	r.Show, r.Skip = r.snapshot, r.ignore
	store := memory.NewJournal()
	r.Lives(func(n int64) error { return r.live(store, n) })
}
