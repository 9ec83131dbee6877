package failover

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func TestMain(m *testing.M) {
	crash.Main(m, map[string]crash.Role{"coordinator": coordinate})
}

// shards of the journal, and ttl of the claims on them.
const (
	shards = 4
	ttl    = 3 * time.Second
)

// engine is a coordinator on the journal of a backend, with sagas that call the bank.
type engine struct {
	*saga.Engine
	coordinator *coordinator.Coordinator
	journal     *journal.Journal
	transfer    saga.Definition[transfer]
	close       func()
}

func open(ctx context.Context, url, bank string) (*engine, error) {
	target, err := backend.Parse(url)
	if err != nil {
		return nil, err
	}
	store, disconnect, err := target.Journal(ctx, "")
	if err != nil {
		return nil, err
	}
	e := &engine{}
	if e.journal, err = journal.New(store, &journal.Options{Shards: shards}); err != nil {
		disconnect()
		return nil, err
	}
	e.close = func() { _ = e.journal.Close(); disconnect() }
	if e.coordinator, err = coordinator.New(e.journal, &coordinator.Options{Poll: 100 * time.Millisecond, Recheck: 2 * time.Second}); err != nil {
		return nil, err
	}
	call := func(ctx context.Context, of transfer) (struct{}, error) {
		text, err := json.Marshal(of)
		if err != nil {
			return struct{}{}, err
		}
		_, err = branchhttp.Caller{}.Post(ctx, bank, branch.From(ctx), text)
		return struct{}{}, err
	}
	undo := func(ctx context.Context, of transfer, _ *struct{}) error { _, err := call(ctx, of); return err }
	quick := saga.Policy{First: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	e.transfer = saga.Define("transfer",
		saga.Step("debit", call).Undo("refund", undo).Retry(quick),
		saga.Step("credit", call).Pivot().Retry(quick))
	e.Engine, err = saga.New(e.coordinator, nil, e.transfer)
	return e, err
}

// coordinate runs a process that drives its shards until it is killed. If the backend
// supports groups, a group owns the shards; otherwise one lock covers
// all of them.
func coordinate(ctx context.Context, _ *crash.Points, args []string) error {
	url, bank := args[0], args[1]
	e, err := open(ctx, url, bank)
	if err != nil {
		return err
	}
	target, err := backend.Parse(url)
	if err != nil {
		return err
	}
	locks, err := target.Locks(ctx, backend.Options{TTL: ttl})
	if err != nil {
		return err
	}
	values, _, err := target.Values(ctx, "")
	if err != nil {
		return err
	}
	fmt.Println("serving")
	if values == nil {
		return e.underOneLock(ctx, locks)
	}
	_, err = partition.Join(ctx, locks, values, "sagas", partition.Layout{Partitions: shards}, &partition.Options{
		Work: func(ctx context.Context, p partition.Partition) error {
			return e.coordinator.Serve(ctx, p.Claim, p.Index)
		},
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (e *engine) underOneLock(ctx context.Context, locks *backend.Locks) error {
	l, err := lock.NewFenced(locks, nil)
	if err != nil {
		return err
	}
	for {
		err := l.Do(ctx, "sagas", func(ctx context.Context, c interlock.Claim) error { return e.coordinator.Run(ctx, c) })
		if ctx.Err() != nil {
			return err
		}
	}
}
