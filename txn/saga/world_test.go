package saga

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand

	crash.Main(m, map[string]crash.Role{"engine": engine, "local": localEngine})
}

// The helpers that the tests of txn share.
var (
	ok, wantKind, same = txntest.OK, txntest.WantKind, txntest.Same
	bubble, began      = virtual.Test, virtual.Began
	runBubble          = txntest.RunBubble
	grant, repeat      = txntest.Grant, txntest.Repeat
	crashAt, stopAt    = txntest.CrashAt, txntest.StopAt
	unscheduled        = txntest.Unscheduled
)

type (
	claim   = txntest.Claim
	watched = txntest.Journal
	points  = txntest.Points
)

// target represents the participants of all engines: the calls of one key have one effect,
// and it refuses a call after its undo.
type target struct {
	points *points // of the calling engine; nil means none
	of     *target // the target of this connection; nil if this is the target

	mu      sync.Mutex
	again   map[int]int // after which call which one is repeated, from 1
	calls   []string    // by key
	effects []string    // by key, in order
}

// take makes a call, which takes effect once, and not after its undo. The call and its answer
// can be lost.
func (g *target) take(key string) error {
	if err := g.points.Pass(); err != nil {
		return err
	}
	at := g
	if g.of != nil {
		at = g.of
	}
	return errors.Join(at.hear(key), g.points.Pass())
}

func (g *target) hear(key string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.arrive(key)
	if of := g.again[len(g.calls)]; of > 0 {
		_ = g.arrive(g.calls[of-1]) // delayed until now; the answer is lost
	}
	return err
}

func (g *target) arrive(key string) error {
	g.calls = append(g.calls, key)
	step, do := strings.CutSuffix(key, "/do")
	switch {
	case do && (slices.Contains(g.effects, step+"/undo") || slices.Contains(g.effects, step+"/undo?")):
		return Fail(errSeat)
	case !slices.Contains(g.effects, key):
		g.effects = append(g.effects, key)
	}
	return nil
}

func (g *target) count(key string) (calls, effects int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.calls {
		if k == key {
			calls++
		}
	}
	for _, k := range g.effects {
		if k == key {
			effects++
		}
	}
	return calls, effects
}

func (g *target) did() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.effects)
}

// onTarget runs a test in virtual time, with a target.
func onTarget(t *testing.T, test func(t *testing.T, g *target)) {
	t.Helper()
	bubble(t, func(t *testing.T) { test(t, &target{}) })
}

// runOnTarget runs a subtest by onTarget.
func runOnTarget(t *testing.T, name string, test func(t *testing.T, g *target)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { onTarget(t, test) })
}

var (
	errSeat    = errors.New("no seat")
	errNetwork = errors.New("network")
)

// act returns an action of g that first returns the errors in fails, and then its step's
// name.
func (g *target) act(name string, fails ...error) Action[string, string] {
	var calls atomic.Int32
	return Step(name, func(ctx context.Context, input string) (string, error) {
		if call := int(calls.Add(1)); call <= len(fails) && fails[call-1] != nil {
			return "", fails[call-1]
		}
		return input + ">" + name, g.take(From(ctx).Key())
	})
}

// undoable returns act with an undo.
func (g *target) undoable(name string, fails ...error) Action[string, string] {
	return g.act(name, fails...).Undo("un"+name, func(ctx context.Context, _ string, out *string) error {
		key := From(ctx).Key()
		if out == nil {
			key += "?"
		}
		return g.take(key)
	})
}

// always returns an error a thousand times.
func always(err error) []error { return repeat(1000, err) }

// rig is an engine over a journal of one shard, served until the test ends.
type rig struct {
	engine      *Engine
	coordinator *coordinator.Coordinator
	store       *watched
	claim       *claim
	stop        context.CancelFunc
	served      chan error
}

// serve returns a serving engine, on a new store if none is given.
func serve(t *testing.T, store *watched, n int64, o *settings, defs ...Defined) *rig {
	t.Helper()
	if store == nil {
		store = txntest.NewJournal()
	}
	r := idle(t, store, o, defs...)
	r.serve(t, n)
	return r
}

// serveBegun returns a serving engine on a new store, which has begun a saga.
func serveBegun[I any](t *testing.T, o *settings, d Definition[I], id string, input I) *rig {
	t.Helper()
	r := serve(t, nil, 1, o, d)
	ok(t, d.Start(t.Context(), r.engine, id, input))
	return r
}

// idle returns an engine that serves nothing.
func idle(t *testing.T, store *watched, o *settings, defs ...Defined) *rig {
	t.Helper()
	if o == nil {
		o = &settings{}
	}
	o.Random = func() float64 { return 0.5 }
	e, err := build(open(t, store, journal.Options{Shards: 1, Patience: time.Second}), o, defs...)
	ok(t, err)
	return &rig{engine: e, coordinator: e.coordinator, store: store, stop: func() {}}
}

// open returns a journal on a store.
func open(t *testing.T, store driver.Journal, o journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.New(store, &o)
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	return j
}

// settings are the options of a coordinator and of its engine.
type settings struct {
	coordinator.Options
	saga Options
}

// build returns an engine with its coordinator.
func build(j *journal.Journal, o *settings, defs ...Defined) (*Engine, error) {
	c, err := coordinator.New(j, &o.Options)
	if err != nil {
		return nil, err
	}
	return New(c, &o.saga, defs...)
}

// serve serves the shard under the n-th claim until the test ends.
func (r *rig) serve(t *testing.T, n int64) {
	t.Helper()
	r.claim, r.stop, r.served = txntest.Serve(t, r.coordinator.Serve, n)
}

// quit stops serving, and waits for that.
func (r *rig) quit() { r.stop(); <-r.served }

// records returns the records of a saga, as kind:step.
func (r *rig) records(t *testing.T, id string) []string {
	t.Helper()
	return txntest.Records(t, r.store.Journal, id)
}

// beat returns an undoable step that takes d, with four heartbeats.
func (g *target) beat(name string, d time.Duration) Action[string, string] {
	return Step(name, func(ctx context.Context, input string) (string, error) {
		for range 4 {
			time.Sleep(d / 4)
			if !Heartbeat(ctx) {
				return "", context.Cause(ctx)
			}
		}
		return input, g.take(From(ctx).Key())
	}).Undo("un"+name, func(ctx context.Context, _ string, _ *string) error { return g.take(From(ctx).Key()) })
}
