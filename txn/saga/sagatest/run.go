package sagatest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
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

// A mishap is what becomes of a call; the zero value is nothing.
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
	crashedAt                           *point
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
	defer func() { r.hangs = deadlocked(recover()) || r.hangs }()
	synctest.Test(e.t, func(*testing.T) {
		time.Sleep(time.Until(began))
		r.play(e.build())
	})
	return r
}

// deadlocked reports whether a panic of synctest says that something in the bubble waits
// for ever.
func deadlocked(cause any) bool {
	err, is := cause.(error)
	if cause != nil && !(is && strings.HasPrefix(err.Error(), "deadlock")) {
		panic(cause)
	}
	return cause != nil
}

// play has engines go on with the saga until one does not crash.
func (r *run) play(s set) {
	r.set = s
	if r.initial = r.see(); r.err != nil {
		return
	}
	store := memory.NewJournal()
	for n := int64(1); r.err == nil; n++ {
		l := &life{}
		if n == 1 {
			l.chosen = r.crash
		}
		if err := r.live(store, l, n); err != nil {
			r.err = err
			return
		}
		if !l.crashed() {
			break
		}
		r.crashedAt = &l.at
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

// live is one engine from its start to its crash, to the end of the saga, or until the
// time of the run is up.
func (r *run) live(store *memory.Journal, l *life, n int64) error {
	ctx, stop := context.WithTimeoutCause(context.Background(), r.limit, errors.New("the time of the run is up"))
	defer stop()
	ctx, l.end = context.WithCancelCause(ctx)
	defer l.end(nil)
	a := &alarm{limit: r.limit}
	defer a.stop()
	j, err := journal.New(crashing{store, l, a.set}, &journal.Options{Shards: 1, Patience: time.Second / 10})
	if err != nil {
		return err
	}
	defer j.Close()
	c, engine, err := r.engine(j, l)
	if err != nil {
		return err
	}
	a.ring = func() { c.Nudge(id) }
	if left, err := store.Due(ctx, 0, driver.Head{}, 1); err == nil && len(left) > 0 {
		a.set(left[0].Due)
	}
	owner, err := grant(ctx, n)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx, owner, 0) }()
	if !r.realTime {
		synctest.Wait()
	}
	err = r.do(ctx, engine)
	over := ctx.Err() != nil
	l.end(nil)
	if err != nil && !over && !isEnded(err) {
		return err
	}
	select {
	case err = <-served:
	case <-time.After(r.limit):
		r.hangs = true
		return nil
	}
	if err != nil && interlock.Kind(err) == interlock.Bug {
		return err
	}
	return r.read(store)
}

func isEnded(err error) bool {
	var ended *saga.EndedError
	return errors.As(err, &ended)
}

func (r *run) engine(j *journal.Journal, l *life) (*coordinator.Coordinator, *saga.Engine, error) {
	never := 2 * r.limit // an alarm tells what is due, and the end wakes who waits for it
	o := coordinator.Options{Poll: never, Recheck: never, Random: func() float64 { return 0.5 }}
	if r.realTime {
		o.Poll, o.Random = 10*time.Millisecond, func() float64 { return 0.01 }
	}
	c, err := coordinator.New(j, &o)
	if err != nil {
		return nil, nil, err
	}
	e, err := saga.New(c, nil, r.defined(r.around(l)))
	return c, e, err
}

// read is how the saga stands by its journal.
func (r *run) read(store *memory.Journal) error {
	j, err := journal.New(store, &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	_, entries, err := j.Open(context.Background(), id)
	if err != nil {
		return err
	}
	moments, err := saga.Replay(entries)
	if err != nil || len(moments) == 0 {
		return err // an engine that crashed before it began the saga left nothing
	}
	last := moments[len(moments)-1]
	r.state, r.reason, r.steps = last.State, last.Reason, last.Steps
	return nil
}
