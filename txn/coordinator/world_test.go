package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	testbed.Main(m)
}

// The helpers that the tests of txn share.
var (
	ok, wantKind  = txntest.OK, txntest.WantKind
	bubble, began = virtual.Test, virtual.Began
	runBubble     = txntest.RunBubble
	grant         = txntest.Grant
)

type claim = txntest.Claim

// calls is a protocol of one call, of the target that its transaction's type names:
// it is repeated every hour until it succeeds.
type calls struct {
	do func(ctx context.Context, id string) error

	mu     sync.Mutex
	drives map[string]int
}

func (p *calls) Drive(t *Turn) error {
	p.mu.Lock()
	p.drives[t.ID()]++
	p.mu.Unlock()
	target := t.Head().Type
	for {
		if err := t.Holds(); err != nil {
			return err
		}
		err := t.Round(Task{Target: target, Timeout: 10 * time.Second, Call: branch.Call{Transaction: t.ID(), Branch: "b", Operation: branch.Do},
			Do: func(ctx context.Context) error { return p.do(ctx, t.ID()) }})[0]
		if err == nil {
			return t.End(journal.Entry{Kind: "end"})
		}
		if !t.Pause(time.Hour, target) {
			return t.Holds()
		}
	}
}

func (p *calls) driven(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drives[id]
}

// rig is a coordinator of the protocol "call".
type rig struct {
	*Coordinator
	store  driver.Journal
	calls  *calls
	claim  *claim
	stop   context.CancelFunc
	served chan error
}

// idle returns a coordinator over a journal of one shard.
func idle(t *testing.T, store driver.Journal, o *Options, do func(ctx context.Context, id string) error) *rig {
	t.Helper()
	return idleOf(t, 1, store, o, do)
}

func idleOf(t *testing.T, shards int, store driver.Journal, o *Options, do func(ctx context.Context, id string) error) *rig {
	t.Helper()
	if store == nil {
		store = memory.NewJournal()
	}
	j, err := journal.New(store, &journal.Options{Shards: shards, Patience: time.Second})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	c, err := New(j, o)
	ok(t, err)
	r := &rig{Coordinator: c, store: store, calls: &calls{do: do, drives: map[string]int{}}}
	ok(t, c.Handle("call", r.calls))
	return r
}

// serve serves the shard under the n-th claim until the test ends.
func (r *rig) serve(t *testing.T, n int64) {
	t.Helper()
	r.claim, r.stop, r.served = txntest.Serve(t, r.Serve, n)
}

// handleBroken adds a protocol that ends its transactions, and cannot drive them before repaired is true.
func (r *rig) handleBroken(t *testing.T, name string) (repaired *atomic.Bool) {
	t.Helper()
	repaired = new(atomic.Bool)
	ok(t, r.Handle(name, protocolFunc(func(t *Turn) error {
		if !repaired.Load() {
			return errDown
		}
		return t.End(journal.Entry{Kind: "end"})
	})))
	return repaired
}

// serveBegun serves the shard, and begins a transaction there.
func (r *rig) serveBegun(t *testing.T, id, kind string) {
	t.Helper()
	r.serve(t, 1)
	r.begin(t, id, kind)
}

// run serves all shards under a claim until the test ends.
func (r *rig) run(t *testing.T) {
	t.Helper()
	run := func(ctx context.Context, c interlock.Claim, _ int) error { return r.Run(ctx, c) }
	r.claim, r.stop, r.served = txntest.Serve(t, run, 1)
}

// succeed is a call that succeeds.
func succeed(context.Context, string) error { return nil }

func (r *rig) begin(t *testing.T, id, kind string) {
	t.Helper()
	ok(t, r.Begin(t.Context(), id, kind, journal.Entry{Kind: "begin"}))
}

func (r *rig) ended(t *testing.T, id string) bool {
	t.Helper()
	head, _, err := r.store.Read(t.Context(), id, 0)
	ok(t, err)
	return !head.Ended.IsZero()
}

// wantEnded requires that a transaction has ended once nothing runs.
func (r *rig) wantEnded(t *testing.T, id string) {
	t.Helper()
	if synctest.Wait(); !r.ended(t, id) {
		t.Errorf("%s has not ended", id)
	}
}

// recordsOf returns the number of records of a transaction.
func (r *rig) recordsOf(t *testing.T, id string) int {
	t.Helper()
	return len(txntest.Records(t, r.store, id))
}
