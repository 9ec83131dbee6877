package tcctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

type (
	scenario = rehearsal.Scenario[Kind]
	callID   = rehearsal.CallID
	fault    = rehearsal.Fault
)

// A run is a transaction in a scenario.
type run struct {
	Scene
	rehearsal.Trial[Kind]
	scene func() Scene

	branches []string // of the transaction, if known yet
	turns    chan struct{}
	quit     func() // ends the context of Run
	rival    func() // runs the same in another process
	rivalled chan struct{}

	// Mu guards these.
	tries    []string // the branches that were tried in this life
	reached  []string // the resources that were called
	competed bool
	wrong    error       // the first error of the invariant
	wronged  branch.Call // the call before it
	try      func()      // the call that arrives late

	seenBefore, seenAfter []string // Visible around the try of the branch that runs alone
	freed                 string   // unrequested changes of a sweep
	swept                 bool
	sweeping              error          // of the last sweep
	told                  []tcc.Decision // returned by Run in all lives
	said                  error          // returned by the last Run
	outcome               tcc.Outcome    // zero without a decision
}

// Play runs engines until one does not crash.
func (r *run) Play() {
	r.rivalled, r.turns = make(chan struct{}), make(chan struct{}, 1) // created in the bubble
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

// visible returns the lines of Visible.
func (r *run) visible() []string {
	if r.Visible == nil {
		return nil
	}
	return r.Lines(r.Visible)
}

// The ids of the transactions of each run.
const (
	id      = "explored"
	rivalID = "explored by another"
)

// live runs one engine until its crash, the end of the transaction, or the limit.
func (r *run) live(store *memory.Journal, n int64) error {
	var m *tcc.Engine
	open := func(_ context.Context, j rehearsal.Journal) (c *coordinator.Coordinator, closed func(), err error) {
		m, c, closed, err = r.engine(j)
		return c, closed, err
	}
	_, err := r.Live(n, r.limit(), r.Limit, rehearsal.Journal{Journal: store}, open, func(ctx context.Context) { r.drive(ctx, m, n) })
	if err != nil || r.Hangs {
		return err
	}
	return r.read(store)
}

// drive runs the transaction, or only sweeps its holds, and waits for its end.
func (r *run) drive(ctx context.Context, m *tcc.Engine, n int64) {
	if r.Abandon && n > 1 {
		r.sweeps(ctx, m)
	} else {
		r.begins(ctx, m)
	}
	if r.LateConfirm && !r.Hangs {
		r.sweeps(ctx, m)
	}
	r.Mu.Lock()
	r.swept = true
	r.Mu.Unlock()
	if !r.Hangs {
		_, _ = m.Wait(ctx, id)
	}
	if r.LateConfirm && !r.Hangs {
		r.sweeps(ctx, m)
	}
}

// begins runs the transaction, and records the result.
func (r *run) begins(ctx context.Context, m *tcc.Engine) {
	within, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	r.quit = func() { quit(errQuit) }
	r.rival = func() {
		_ = r.Run(ctx, m, rivalID)
		_, _ = m.Wait(ctx, rivalID)
	}
	done := make(chan error, 1)
	go func() {
		_, err := rehearsal.CatchPanic(within, func(ctx context.Context) (any, error) { return nil, r.Run(ctx, m, id) })
		done <- err
	}()
	select {
	case r.said = <-done:
	case <-ctx.Done():
		select {
		case r.said = <-done:
		case <-time.After(r.Limit):
			r.Hangs = true
		}
	}
	switch {
	case r.Hangs || r.Life.Crashed() != nil: // the result is lost
	case r.said == nil:
		r.told = append(r.told, tcc.Confirm)
	case errors.Is(r.said, tcc.ErrCancelled):
		r.told = append(r.told, tcc.Cancel)
	}
}

// engine returns an engine on a journal that does not serve yet.
func (r *run) engine(j driver.Journal) (*tcc.Engine, *coordinator.Coordinator, func(), error) {
	c, closed, err := rehearsal.Open(j, coordinator.Options{Poll: r.limit() / 1000}, r.RealTime)
	if err != nil {
		return nil, nil, nil, err
	}
	m, err := tcc.New(c, r.Options, r.stage.defined...)
	if err != nil {
		closed()
	}
	return m, c, closed, err
}

// read reads the outcome of the transaction from its journal.
func (r *run) read(store *memory.Journal) error {
	m, _, closed, err := r.engine(store)
	if err != nil {
		return err
	}
	defer closed()
	r.outcome, err = m.Look(context.Background(), id)
	if errors.Is(err, tcc.ErrNone) {
		return nil
	}
	return err
}

// limit bounds one engine, including the expiry of holds, which happens at most twice.
func (r *run) limit() time.Duration { return r.Limit + 3*r.Options.Hold }

// look records the world after a call of the branch that runs alone, and the tried branches.
func (r *run) look(c branch.Call) {
	if r.Alone && c.Branch == r.Name {
		r.After = r.See()
		if c.Operation == branch.Try {
			r.seenAfter = r.visible()
		}
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if c.Operation == branch.Try {
		r.tries = append(r.tries, c.Branch)
	}
}

// tried reports whether these branches were tried.
func (r *run) tried(branches []string) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return !slices.ContainsFunc(branches, func(b string) bool { return !slices.Contains(r.tries, b) })
}

// isSwept reports whether the holds have expired.
func (r *run) isSwept() bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.swept
}

// reach records that a resource is called.
func (r *run) reach(resource string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.reached = append(r.reached, resource)
}

// unreached returns the resources that were not called.
func (r *run) unreached() []string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.stage.names), func(name string) bool { return slices.Contains(r.reached, name) })
}

// answered records the answer of a resource, and checks the invariant.
func (r *run) answered(c branch.Call, err error) {
	broken := r.broken()
	r.Answered(rehearsal.Answer{Transaction: c.Transaction, Name: c.Branch, Operation: c.Operation, Err: err})
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if broken != nil && r.wrong == nil {
		r.wrong, r.wronged = broken, c
	}
}

func (r *run) broken() error {
	if r.Invariant == nil {
		return nil
	}
	return r.Invariant()
}

// explorer runs one scene.
type explorer struct {
	rehearsal.Explorer[Kind, Finding, *run]
	sweeps, shows bool
	branches      []string
}

func newExplorer(t *testing.T, scene func() Scene) *explorer {
	s, e := scene(), &explorer{}
	e.T, e.RealTime, e.sweeps, e.shows = t, s.RealTime, s.Sweep != nil, s.Visible != nil
	e.New = func(p scenario) *run {
		return &run{Trial: rehearsal.Trial[Kind]{Scenario: p}, scene: scene, branches: e.branches}
	}
	e.Key = func(f Finding) (Kind, string) { return f.Kind, f.Branch }
	return e
}

// explore runs all scenarios.
func (e *explorer) explore() ([]Finding, error) {
	if over, err := e.withoutFaults(); over || err != nil {
		return e.Found, err
	}
	for _, b := range e.branches {
		if err := e.branch(b); err != nil {
			return e.Found, err
		}
	}
	return e.Found, e.together()
}

// withoutFaults reads the branches of a transaction without faults. over is true if something was
// found that ends the exploration.
func (e *explorer) withoutFaults() (over bool, err error) {
	p := scenario{Words: "there is no fault"}
	first, over, err := e.WithoutFaults(p)
	if over || err != nil {
		return over, err
	}
	e.branches = slices.Compact(slices.Sorted(slices.Values(first.tries)))
	for _, resource := range first.unreached() {
		e.Keep(&Finding{Kind: NeverReached, Branch: resource, Scenario: p.Words, Problem: "no branch of the transaction is one of this resource"})
	}
	return false, nil
}

// branch runs the scenarios of one branch.
func (e *explorer) branch(b string) error {
	for _, scenarios := range e.forward(b) {
		if err := e.First(scenarios...); err != nil {
			return err
		}
	}
	plain, others := e.backward(b)
	before := len(e.Found)
	if err := e.First(plain); err != nil || len(e.Found) > before {
		return err
	}
	for _, scenarios := range others {
		if scenarios[0].Kind == TryVisible && !e.shows {
			continue
		}
		if err := e.First(scenarios...); err != nil {
			return err
		}
	}
	return nil
}

// together runs the scenarios of all branches. It ends with the first finding: the rest would
// repeat it.
func (e *explorer) together() error {
	scenarios := append([]scenario{{Words: "there is no other fault", Kind: OutcomeDiffers}}, e.refusals()...)
	whole := append(slices.Clone(scenarios[1:]), concurrentRun())
	if e.sweeps {
		whole = append(whole, lateConfirm())
	}
	for _, p := range whole {
		if len(e.Found) > 0 {
			return nil
		}
		if err := e.First(p); err != nil {
			return err
		}
	}
	for _, p := range scenarios {
		for _, p.Abandon = range []bool{false, true} {
			if p.Abandon && !e.sweeps {
				continue
			}
			if err := e.Crashes(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// Plain returns why the run without faults is no reference.
func (r *run) Plain() error {
	switch {
	case r.outcome.State != tcc.Confirmed:
		return fmt.Errorf("without faults the transaction must be confirmed, and is %q: %w", r.outcome.State, errors.Join(r.said, errors.New(r.outcome.Reason)))
	case r.said != nil:
		return fmt.Errorf("without faults the transaction is confirmed, but Run returned: %w", r.said)
	}
	return nil
}

// A World has the state of fakes of participants: values by keys, in memory. The zero value is
// empty and ready. It is safe for concurrent use.
type World struct {
	mu     sync.Mutex
	values Values
	holds  map[owner]*hold
	order  []owner // in the order of their tries
}

// owner identifies the branch of a hold.
type owner struct{ transaction, branch string }

// hold is the outcome of a branch.
type hold struct {
	state  string // held, confirmed, cancelled or refused
	until  time.Time
	output any
	err    error
}

const (
	held      = "held"
	confirmed = "confirmed"
	cancelled = "cancelled"
	refusal   = "refused"
)

// Values has the values of a [World], within an effect. A missing value is empty.
type Values map[string]string

// Add adds to the number of a key, from 0, and returns the sum. It panics if the value is not
// a number.
func (v Values) Add(key string, n int) int { return rehearsal.Values(v).Add(key, n) }

// Set sets the value of a key; an empty one removes it. It has no guard: use it before the
// transaction begins.
func (w *World) Set(key, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values = w.draft()
	w.values[key] = value
}

// Get returns the value of a key, or "".
func (w *World) Get(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

// Snapshot returns the values, one a line, in the order of their keys, for [Scene.Snapshot]. It
// omits those that are empty or 0, which Add does not distinguish from missing ones.
func (w *World) Snapshot() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rehearsal.Values(w.values).Text()
}

// draft returns a copy of the values that can be changed.
func (w *World) draft() Values { return Values(rehearsal.Values(w.values).Draft()) }
