package tcc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	crash.Main(m, map[string]crash.Role{"engine": engineRole})
}

// The helpers that the tests of txn share.
var (
	ok, wantKind, same = txntest.OK, txntest.WantKind, txntest.Same
	bubble, began      = virtual.Test, virtual.Began
	crashAt, stopAt    = txntest.CrashAt, txntest.StopAt
	grant, unscheduled = txntest.Grant, txntest.Unscheduled
	runBubble          = txntest.RunBubble
)

type (
	claim   = txntest.Claim
	watched = txntest.Journal
	points  = txntest.Points
)

var (
	errFull    = errors.New("full")
	errNetwork = errors.New("network")
)

// hold is a branch at a venue.
type hold struct {
	state string // held, confirmed, cancelled, blocked or refused
	until time.Time
}

// post carries the messages of all venues, and records them.
type post struct {
	mu       sync.Mutex
	keys     []string
	again    []func() error // the same call, again
	late, at int            // the late-th message is repeated before the at-th, from 1; 0 is never
}

// deliver delivers a message, and perhaps an earlier one first.
func (p *post) deliver(key string, call func() error) error {
	p.mu.Lock()
	p.keys, p.again = append(p.keys, key), append(p.again, call)
	var late func() error
	if p.at == len(p.keys) {
		late = p.again[p.late-1]
	}
	p.mu.Unlock()
	if late != nil {
		_ = late() // the answer is lost
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

// venue is a participant in memory that fulfills the contract of Resource: it never exceeds
// its capacity, and its barrier is one row a branch. It serves all engines.
type venue struct {
	name   string
	of     *venue                                    // the venue behind this connection; nil if it is none
	points *points                                   // of the process that calls
	bad    func(c branch.Call) (before, after error) // of a call; nil is none

	commits bool // a try that holds returns the cause of the end of its context

	mu       sync.Mutex
	capacity int
	holds    map[string]*hold // by transaction
	post     *post
	broken   []string // broken rules
}

func newVenue(name string, capacity int) *venue {
	return &venue{name: name, capacity: capacity, holds: map[string]*hold{}, post: &post{}}
}

// atHotel runs a test in virtual time, with a hotel of a capacity.
func atHotel(t *testing.T, rooms int, test func(t *testing.T, hotel *venue)) {
	t.Helper()
	bubble(t, func(t *testing.T) { test(t, newVenue("hotel", rooms)) })
}

// atBoth runs a test in virtual time, with a hotel and a flight.
func atBoth(t *testing.T, rooms, seats int, test func(t *testing.T, hotel, flight *venue)) {
	t.Helper()
	bubble(t, func(t *testing.T) { test(t, newVenue("hotel", rooms), newVenue("flight", seats)) })
}

// by returns the connection of a process to a venue.
func (v *venue) by(at *points) *venue { return &venue{name: v.name, of: v, points: at} }

// itself returns the venue where calls arrive.
func (v *venue) itself() *venue {
	if v.of != nil {
		return v.of
	}
	return v
}

func (v *venue) define() Definition[string, string] { return Define(v.name, v) }

func (v *venue) Try(ctx context.Context, q string, until time.Time) (string, error) {
	c := branch.From(ctx)
	err := v.take(c, func(v *venue) error { return v.try(c.Transaction, until) })
	if err == nil && v.commits {
		<-ctx.Done()
		err = fmt.Errorf("commit: %w", context.Cause(ctx))
	}
	return "hold of " + q, err
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

// take makes a call. The call and its answer can be lost.
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
	if err := points.Pass(); err != nil {
		return err
	}
	err := at.post.deliver(c.Key(), func() error { return do(at) })
	if after != nil {
		return after
	}
	if crashed := points.Pass(); crashed != nil {
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

// used returns the number of held and confirmed units; v is locked.
func (v *venue) used() (n int) {
	for _, h := range v.holds {
		if h.state == "held" || h.state == "confirmed" {
			n++
		}
	}
	return n
}

// state returns the state of a transaction's hold.
func (v *venue) state(id string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h := v.holds[id]; h != nil {
		return h.state
	}
	return ""
}

// sweep asks about expired holds, and releases them if the answer is cancel.
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

// idle returns an engine whose coordinator serves nothing, on a new store if none is
// given.
func idle(t *testing.T, store *watched, o *Options, now func() time.Time, venues ...*venue) *rig {
	t.Helper()
	if store == nil {
		store = txntest.NewJournal()
	}
	return &rig{Engine: build(t, store, o, &coordinator.Options{Now: now}, venues...), store: store, stop: func() {}}
}

// build returns an engine with its coordinator.
func build(t *testing.T, store driver.Journal, o *Options, of *coordinator.Options, venues ...*venue) *Engine {
	t.Helper()
	j, err := journal.New(store, &journal.Options{Shards: 1, Patience: time.Second})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	of.Random = func() float64 { return 0.5 }
	c, err := coordinator.New(j, of)
	ok(t, err)
	var defs []Defined
	for _, v := range venues {
		defs = append(defs, v.define())
	}
	m, err := New(c, o, defs...)
	ok(t, err)
	return m
}

// serveOne returns an engine of one resource, which serves, and its definition.
func serveOne[Q, H any](t *testing.T, o *Options, resource Resource[Q, H]) (*rig, Definition[Q, H]) {
	t.Helper()
	r, d := idle(t, nil, o, nil), Define("one", resource)
	r.handles["one"] = d.of
	r.serve(t, 1)
	return r, d
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
	r.claim, r.stop, r.served = txntest.Serve(t, r.coordinator.Serve, n)
}

// run runs a transaction with one branch at each venue.
func (r *rig) run(ctx context.Context, id string, venues ...*venue) (Outcome, error) {
	var branches []Branch
	for _, v := range venues {
		branches = append(branches, v.define().Try("seat"))
	}
	return r.Run(ctx, "booking", id, branches...)
}
