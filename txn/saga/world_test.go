package saga

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand

	crash.Main(m, map[string]crash.Role{"engine": engine, "local": localEngine, "looping": looping})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, kind interlock.ErrorKind, is error) {
	t.Helper()
	if err == nil || interlock.Kind(err) != kind || is != nil && !errors.Is(err, is) {
		t.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, is)
	}
}

var began = time.Now()

// bubble runs a test in virtual time that begins at the present, so that tokens are
// plausible.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(began))
		test(t)
	})
}

// claim lasts until it is ended.
type claim struct {
	token   interlock.Token
	ctx     context.Context
	end     context.CancelCauseFunc
	expired atomic.Bool
}

// grant is the n-th claim.
func grant(n int64) *claim {
	token, err := interlock.NewToken(interlock.CounterAt(began)+n, 0)
	if err != nil {
		panic(err)
	}
	c := &claim{token: token}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	return c
}

func (c *claim) Name() string             { return "shard" }
func (c *claim) Owner() string            { return "tester" }
func (c *claim) Token() interlock.Token   { return c.token }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Valid() bool              { return !c.expired.Load() && c.ctx.Err() == nil }
func (c *claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}

// watched is a memory journal that counts appends, and passes a point before and
// after each.
type watched struct {
	*memory.Journal
	points *points

	mu      sync.Mutex
	appends int
	reads   atomic.Int64
}

func (w *watched) Append(ctx context.Context, appends []driver.Append) []error {
	if err := w.points.pass(); err != nil {
		return repeat(len(appends), err)
	}
	w.mu.Lock()
	w.appends += len(appends)
	w.mu.Unlock()
	errs := w.Journal.Append(ctx, appends)
	if err := w.points.pass(); err != nil {
		return repeat(len(appends), err)
	}
	return errs
}

// Claim and Enter are nothing that a crashed engine does.
func (w *watched) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]driver.Head, error) {
	if w.points.over() {
		return nil, errCrashed
	}
	return w.Journal.Claim(ctx, shard, epoch, by, until, limit)
}

func (w *watched) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	if w.points.over() {
		return errCrashed
	}
	return w.Journal.Enter(ctx, shard, epoch)
}

// Read waits until the engine wakes up.
func (w *watched) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	w.points.over()
	w.reads.Add(1)
	return w.Journal.Read(ctx, id, after)
}

func repeat(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// errCrashed is what everything ends with in an engine that has crashed. It is not
// Definite: the engine may conclude nothing from it.
var errCrashed = errors.New("crashed")

// points are where an engine can crash or stop, numbered from 1 as they are passed. From the
// chosen one on nothing that it does has an effect, or nothing until it is woken.
type points struct {
	mu      sync.Mutex
	chosen  int // 0 is none
	passed  int
	reached chan struct{}
	dead    bool
	wake    chan struct{} // nil if it crashes
}

func crashAt(n int) *points { return &points{chosen: n, reached: make(chan struct{})} }

func stopAt(n int) *points {
	return &points{chosen: n, reached: make(chan struct{}), wake: make(chan struct{})}
}

func (p *points) pass() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if !p.dead {
		p.passed++
		if p.passed == p.chosen {
			p.dead = p.wake == nil
			close(p.reached)
		}
	}
	p.mu.Unlock()
	if p.over() {
		return errCrashed
	}
	return nil
}

// over reports whether it has crashed. If it is stopped, that is known when it wakes up.
func (p *points) over() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	dead, stopped := p.dead, p.wake != nil && p.passed >= p.chosen
	p.mu.Unlock()
	if stopped {
		<-p.wake
	}
	return dead
}

// target is the participants of all engines: it lets the calls of one key have one
// effect, and refuses a call behind its undo.
type target struct {
	points *points // of the engine that calls; nil is none
	of     *target // the one that this is a way to; nil if it is none

	mu      sync.Mutex
	again   map[int]int // behind which call which one comes again, from 1
	calls   []string    // by key
	effects []string    // by key, in their order
}

// take is a call: what arrives takes effect once, and not behind its undo. It can be
// lost on the way there, and its answer on the way back.
func (g *target) take(key string) error {
	if err := g.points.pass(); err != nil {
		return err
	}
	at := g
	if g.of != nil {
		at = g.of
	}
	return errors.Join(at.hear(key), g.points.pass())
}

func (g *target) hear(key string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.arrive(key)
	if of := g.again[len(g.calls)]; of > 0 {
		_ = g.arrive(g.calls[of-1]) // delayed on its way until now; nobody hears the answer
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

var (
	errSeat    = errors.New("no seat")
	errNetwork = errors.New("network")
)

// act is an action of g that gives its step's name, as often as fails does not say
// otherwise.
func (g *target) act(name string, fails ...error) Action[string, string] {
	calls := 0
	return Step(name, func(ctx context.Context, input string) (string, error) {
		if calls++; calls <= len(fails) && fails[calls-1] != nil {
			return "", fails[calls-1]
		}
		return input + ">" + name, g.take(From(ctx).Key())
	})
}

// undoable is act with an undo.
func (g *target) undoable(name string, fails ...error) Action[string, string] {
	return g.act(name, fails...).Undo("un"+name, func(ctx context.Context, _ string, out *string) error {
		key := From(ctx).Key()
		if out == nil {
			key += "?"
		}
		return g.take(key)
	})
}

// always is an error for ever.
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

// serve makes and serves an engine, on a store of its own if none is given.
func serve(t *testing.T, store *watched, n int64, o *settings, defs ...Defined) *rig {
	t.Helper()
	if store == nil {
		store = &watched{Journal: memory.NewJournal()}
	}
	r := idle(t, store, o, defs...)
	r.serve(t, n)
	return r
}

// idle makes an engine that serves nothing.
func idle(t *testing.T, store *watched, o *settings, defs ...Defined) *rig {
	t.Helper()
	j, err := journal.New(store, &journal.Options{Shards: 1, Patience: time.Second})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	if o == nil {
		o = &settings{}
	}
	o.Random = func() float64 { return 0.5 }
	e, err := build(j, o, defs...)
	ok(t, err)
	return &rig{engine: e, coordinator: e.coordinator, store: store, stop: func() {}}
}

// settings are the options of a coordinator and of its engine.
type settings struct {
	coordinator.Options
	saga Options
}

// build makes an engine and its coordinator.
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
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	r.claim, r.stop, r.served = grant(n), stop, served
	c := r.claim
	go func() { served <- r.coordinator.Serve(ctx, c, 0) }()
	synctest.Wait()
	t.Cleanup(func() {
		stop()
		c.end(interlock.ErrReleased)
		synctest.Wait()
	})
}

// records are those of a saga, as kind:step.
func (r *rig) records(t *testing.T, id string) []string {
	t.Helper()
	_, entries, err := r.coordinator.Journal().Open(context.Background(), id)
	ok(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%s:%s", e.Kind, e.Step))
	}
	return all
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v\nwant %v", what, got, want)
	}
}

// beat is an undoable step that takes d, and beats four times meanwhile.
func (g *target) beat(name string, d time.Duration) Action[string, string] {
	return Step(name, func(ctx context.Context, input string) (string, error) {
		for range 4 {
			time.Sleep(d / 4)
			if !Beat(ctx) {
				return "", context.Cause(ctx)
			}
		}
		return input, g.take(From(ctx).Key())
	}).Undo("un"+name, func(ctx context.Context, _ string, _ *string) error { return g.take(From(ctx).Key()) })
}
