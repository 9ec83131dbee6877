package tcc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	crash.Main(m, map[string]crash.Role{"engine": engineRole})
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

func same(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v\nwant %v", what, got, want)
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

// watched is a memory journal that counts appends, passes a point before and after
// each, and can fail.
type watched struct {
	*memory.Journal
	points *points
	fail   func(n int, a driver.Append) (before, after error) // of the n-th append; nil fails none

	mu      sync.Mutex
	appends int
}

func (w *watched) Append(ctx context.Context, appends []driver.Append) []error {
	errs := make([]error, len(appends))
	for i, a := range appends {
		errs[i] = w.append(ctx, a)
	}
	return errs
}

func (w *watched) append(ctx context.Context, a driver.Append) error {
	if err := w.points.pass(); err != nil {
		return err
	}
	w.mu.Lock()
	w.appends++
	n, fail := w.appends, w.fail
	w.mu.Unlock()
	var before, after error
	if fail != nil {
		before, after = fail(n, a)
	}
	if before != nil {
		return before
	}
	err := w.Journal.Append(ctx, []driver.Append{a})[0]
	if after != nil {
		return after
	}
	if crashed := w.points.pass(); crashed != nil {
		return crashed
	}
	return err
}

func (w *watched) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.appends
}

// What a crashed process does not do.
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

func (w *watched) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	if w.points.over() {
		return driver.Head{}, nil, errCrashed
	}
	return w.Journal.Read(ctx, id, after)
}

// errCrashed is what everything ends with in a process that has crashed.
var errCrashed = errors.New("crashed")

// points are where a process can crash or stop, numbered from 1 as they are passed. From the
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

var (
	errFull    = errors.New("full")
	errNetwork = errors.New("network")
)

// hold is what a venue has of a branch.
type hold struct {
	state string // held, confirmed, cancelled, blocked or refused
	until time.Time
}

// post carries the messages of all venues, and remembers them.
type post struct {
	mu       sync.Mutex
	keys     []string
	again    []func() error // the same call, once more
	late, at int            // the late-th message comes again before the at-th, from 1; 0 is never
}

// deliver brings a message, and perhaps one from before first.
func (p *post) deliver(key string, call func() error) error {
	p.mu.Lock()
	p.keys, p.again = append(p.keys, key), append(p.again, call)
	var late func() error
	if p.at == len(p.keys) {
		late = p.again[p.late-1]
	}
	p.mu.Unlock()
	if late != nil {
		_ = late() // nobody hears the answer
	}
	return call()
}

func (p *post) count(key string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys {
		if k == key {
			n++
		}
	}
	return n
}

// venue is a participant in memory that keeps to what Resource asks for: capacity is
// never exceeded, and one row a branch is its barrier. It serves all engines.
type venue struct {
	name   string
	of     *venue                                    // the one that this is a way to; nil if it is none
	points *points                                   // of the process that calls
	bad    func(c branch.Call) (before, after error) // of a call; nil is none

	mu       sync.Mutex
	capacity int
	holds    map[string]*hold // by transaction
	post     *post
	broken   []string // rules that were
}

func newVenue(name string, capacity int) *venue {
	return &venue{name: name, capacity: capacity, holds: map[string]*hold{}, post: &post{}}
}

// by is the way of a process to a venue.
func (v *venue) by(at *points) *venue { return &venue{name: v.name, of: v, points: at} }

// itself is the venue where calls arrive.
func (v *venue) itself() *venue {
	if v.of != nil {
		return v.of
	}
	return v
}

func (v *venue) define() Definition[string, string] { return Define(v.name, v) }

func (v *venue) Try(ctx context.Context, q string, until time.Time) (string, error) {
	c := branch.From(ctx)
	return "hold of " + q, v.take(c, func(v *venue) error { return v.try(c.Transaction, until) })
}

func (v *venue) Confirm(ctx context.Context, _ string, h string) error {
	c := branch.From(ctx)
	if h == "" {
		return branch.Fail(errors.New("confirmed without its hold"))
	}
	return v.take(c, func(v *venue) error { return v.confirm(c.Transaction) })
}

func (v *venue) Cancel(ctx context.Context, _ string, _ *string) error {
	c := branch.From(ctx)
	return v.take(c, func(v *venue) error { return v.cancel(c.Transaction) })
}

// take is a call: it can be lost on the way there, and its answer on the way back.
func (v *venue) take(c branch.Call, do func(v *venue) error) error {
	at, points := v.itself(), v.points
	at.mu.Lock()
	bad := at.bad
	at.mu.Unlock()
	var before, after error
	if bad != nil {
		before, after = bad(c)
	}
	if before != nil {
		return before
	}
	if err := points.pass(); err != nil {
		return err
	}
	err := at.post.deliver(c.Key(), func() error { return do(at) })
	if after != nil {
		return after
	}
	if crashed := points.pass(); crashed != nil {
		return crashed
	}
	return err
}

func (v *venue) try(id string, until time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.holds[id]
	switch {
	case h != nil && (h.state == "held" || h.state == "confirmed"):
		return nil
	case h != nil:
		return branch.Fail(fmt.Errorf("it is %s", h.state))
	case !time.Now().Before(until), v.used() == v.capacity:
		v.holds[id] = &hold{state: "refused"}
		return branch.Fail(errFull)
	}
	v.holds[id] = &hold{state: "held", until: until}
	return nil
}

func (v *venue) confirm(id string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.holds[id]
	if h == nil || h.state != "held" && h.state != "confirmed" {
		v.broken = append(v.broken, fmt.Sprintf("%s: confirmed %+v", id, h))
		return branch.Fail(errors.New("not held"))
	}
	h.state = "confirmed"
	return nil
}

func (v *venue) cancel(id string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.holds[id]
	switch {
	case h == nil:
		v.holds[id] = &hold{state: "blocked"}
	case h.state == "confirmed":
		v.broken = append(v.broken, id+": cancelled what was confirmed")
		return branch.Fail(errors.New("confirmed"))
	case h.state == "held":
		h.state = "cancelled"
	}
	return nil
}

// used is how many are held and confirmed; v is locked.
func (v *venue) used() (n int) {
	for _, h := range v.holds {
		if h.state == "held" || h.state == "confirmed" {
			n++
		}
	}
	return n
}

// state of a transaction's hold.
func (v *venue) state(id string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h := v.holds[id]; h != nil {
		return h.state
	}
	return ""
}

// sweep asks about what is past its time, and frees it if the answer says so.
func (v *venue) sweep(ctx context.Context, ask Ask) error {
	v.mu.Lock()
	var ids []string
	for id, h := range v.holds {
		if h.state == "held" && !time.Now().Before(h.until) {
			ids = append(ids, id)
		}
	}
	v.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		d, err := ask(ctx, id, v.name)
		if err == nil && d == Cancel {
			err = v.cancel(id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v *venue) called(key string) int { return v.post.count(key) }

func (v *venue) rules(t testing.TB) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.broken) > 0 || v.used() > v.capacity {
		t.Errorf("%s: %d of %d used, %v", v.name, v.used(), v.capacity, v.broken)
	}
}

// rig is an engine over a journal of one shard.
type rig struct {
	*Engine
	store  *watched
	claim  *claim
	stop   context.CancelFunc
	served chan error
}

// idle makes an engine whose coordinator serves nothing, on a store of its own if none
// is given.
func idle(t *testing.T, store *watched, o *Options, now func() time.Time, venues ...*venue) *rig {
	t.Helper()
	if store == nil {
		store = &watched{Journal: memory.NewJournal()}
	}
	j, err := journal.New(store, &journal.Options{Shards: 1, Patience: time.Second})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	c, err := coordinator.New(j, &coordinator.Options{Random: func() float64 { return 0.5 }, Now: now})
	ok(t, err)
	var defs []Defined
	for _, v := range venues {
		defs = append(defs, v.define())
	}
	m, err := New(c, o, defs...)
	ok(t, err)
	return &rig{Engine: m, store: store, stop: func() {}}
}

// serve is idle, and serves the shard under the n-th claim until the test ends.
func serve(t *testing.T, store *watched, n int64, o *Options, venues ...*venue) *rig {
	t.Helper()
	r := idle(t, store, o, nil, venues...)
	r.serve(t, n)
	return r
}

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

// run runs a transaction with one branch at each venue.
func (r *rig) run(ctx context.Context, id string, venues ...*venue) (Outcome, error) {
	var branches []Branch
	for _, v := range venues {
		branches = append(branches, v.define().Try("seat"))
	}
	return r.Run(ctx, "booking", id, branches...)
}

// records are those of a transaction, as kind:step.
func (w *watched) records(t testing.TB, id string) (all []string) {
	t.Helper()
	_, records, err := w.Journal.Read(context.Background(), id, 0)
	ok(t, err)
	for _, r := range records {
		all = append(all, r.Kind+":"+r.Step)
	}
	return all
}

func unscheduled(t testing.TB, store *memory.Journal) {
	t.Helper()
	if n, err := store.Unscheduled(context.Background()); n != 0 || err != nil {
		t.Errorf("%d unscheduled, %v", n, err)
	}
}
