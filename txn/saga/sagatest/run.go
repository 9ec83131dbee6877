package sagatest

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

type (
	scenario = rehearsal.Scenario[Kind]
	callID   = rehearsal.CallID
	fault    = rehearsal.Fault
)

// A run is a saga in a scenario.
type run struct {
	set
	rehearsal.Trial[Kind]
	build func() set

	action func() // the call that arrives late
	steps  []saga.Progress
	state  saga.State
	reason string
}

// Play runs engines until one does not crash.
func (r *run) Play() {
	r.set = r.build()
	r.Show, r.Skip = r.snapshot, r.ignore
	store := memory.NewJournal()
	r.Lives(func(n int64) error { return r.live(store, n) })
}

// live runs one engine until its crash, the end of the saga, or the limit. The result is read from the
// journal; an error is that of the caller.
func (r *run) live(store *memory.Journal, n int64) (failed error) {
	a := &alarm{limit: r.limit}
	defer a.stop()
	var engine *saga.Engine
	open := func(ctx context.Context, j rehearsal.Journal) (*coordinator.Coordinator, func(), error) {
		never := 2 * r.limit // an alarm nudges due sagas, and the end wakes waiters
		c, closed, err := rehearsal.Open(j, coordinator.Options{Poll: never, Recheck: never}, r.realTime)
		if err != nil {
			return nil, nil, err
		}
		if engine, err = saga.New(c, nil, r.defined(r.around(j.Life))); err != nil {
			closed()
			return nil, nil, err
		}
		a.ring = func() { c.Nudge(id) }
		if left, err := store.Due(ctx, 0, driver.Head{}, 1); err == nil && len(left) > 0 {
			a.set(left[0].Due)
		}
		return c, closed, nil
	}
	cause, err := r.Live(n, r.limit, r.limit, rehearsal.Journal{Journal: store, Left: a.set}, open, func(ctx context.Context) {
		if err := r.do(ctx, engine); ctx.Err() == nil && !errors.As(err, new(*saga.EndedError)) {
			failed = err
		}
	})
	if cause != nil && interlock.Kind(cause) == interlock.Bug {
		failed = errors.Join(failed, cause)
	}
	if failed = errors.Join(err, failed); failed != nil || r.Hangs {
		return failed
	}
	return r.read(store)
}

// read reads the state of the saga from its journal.
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
		return err // the engine crashed before it began the saga
	}
	last := moments[len(moments)-1]
	r.state, r.reason, r.steps = last.State, last.Reason, last.Steps
	return nil
}

// made is a call of an engine.
type made = func(ctx context.Context) (json.RawMessage, error)

// around injects the scenario's faults into the calls of an engine.
func (r *run) around(l *rehearsal.Life) saga.Interceptor {
	return func(ctx context.Context, call made) (json.RawMessage, error) {
		c := saga.From(ctx)
		at := rehearsal.Point{Words: keyOf(c), Name: keyOf(c), Operation: c.Operation}
		if c.Operation == branch.Undo {
			at.Words = "the undo of " + at.Name
		}
		return rehearsal.Between(l, at, func() (json.RawMessage, error) { return r.call(ctx, at.Name, c.Operation, call) })
	}
}

// keyOf returns the key of the step in its saga.
func keyOf(c saga.Call) string {
	if c.Step != "" {
		return c.Branch + "#" + c.Step
	}
	return c.Branch
}

// call makes a call, as often as the scenario delivers it.
func (r *run) call(ctx context.Context, step string, o branch.Operation, call made) (output json.RawMessage, err error) {
	d, m := r.Begin(step, o)
	watched := r.Alone && step == r.Name
	if watched && d == (callID{Name: step, Operation: branch.Do, N: 1}) {
		r.Before = r.See()
		r.action = func() { _, _ = rehearsal.Late(ctx, call) }
	}
	output, err = rehearsal.Deliver(ctx, m, call, func(err error) { r.Answered(rehearsal.Answer{Name: step, Operation: o, Err: err}) })
	if watched {
		r.After = r.See()
		if m.Late && err == nil {
			r.action()
			r.Late = r.See()
		}
	}
	if m.Answer != nil {
		return nil, m.Answer
	}
	return output, err
}

// alarm drives a saga when it is due, instead of polling, which would take many polls for days of virtual
// time. A due time after the limit was set for the case that the engine dies, and is ignored.
type alarm struct {
	limit time.Duration
	ring  func()

	mu     sync.Mutex
	timers []*time.Timer
	over   bool
}

func (a *alarm) set(due time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := time.Until(due); !a.over && !due.IsZero() && wait <= a.limit {
		a.timers = append(a.timers, time.AfterFunc(wait, a.ring))
	}
}

func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, t := range a.timers {
		t.Stop()
	}
}

// explorer runs one scene.
type explorer struct {
	rehearsal.Explorer[Kind, Finding, *run]
	steps []saga.Progress
}

func newExplorer(t *testing.T, build func() set) *explorer {
	e := &explorer{}
	e.T, e.RealTime = t, build().realTime
	e.New = func(p scenario) *run { return &run{Trial: rehearsal.Trial[Kind]{Scenario: p}, build: build} }
	e.Key = func(f Finding) (Kind, string) { return f.Kind, f.Step }
	return e
}

// explore runs all scenarios.
func (e *explorer) explore() ([]Finding, error) {
	first, over, err := e.WithoutFaults(scenario{Words: "there is no fault"})
	if over || err != nil {
		return e.Found, err
	}
	for _, s := range first.steps {
		if s.Until.IsZero() {
			e.steps = append(e.steps, s)
		}
	}
	for _, s := range e.steps {
		if err := e.forward(s); err != nil {
			return e.Found, err
		}
		if err := e.backward(s); err != nil {
			return e.Found, err
		}
	}
	if len(e.Found) > 0 { // other scenarios would repeat the findings
		return e.Found, nil
	}
	scenarios := append([]scenario{{Words: "there is no other fault", Kind: UndoNeedsOutput}}, e.refusals()...)
	for _, p := range scenarios[1:] {
		if err := e.First(p); err != nil {
			return e.Found, err
		}
	}
	for _, p := range scenarios {
		if err := e.Crashes(p); err != nil {
			return e.Found, err
		}
	}
	return e.Found, nil
}

// pivotAt returns the stage of the pivot, or one after all stages.
func (e *explorer) pivotAt() int {
	i := slices.IndexFunc(e.steps, func(s saga.Progress) bool { return s.Pivot })
	if i < 0 {
		return math.MaxInt
	}
	return e.steps[i].Stage
}
