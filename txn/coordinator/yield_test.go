package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// fleet contains processes of one journal, each with one protocol.
type fleet struct {
	store  driver.Journal
	space  *memory.Space
	serves atomic.Int64 // how often any of them began to serve a shard
	o      Options
}

// process starts a member that drives transactions of one protocol, by the action.
func (f *fleet) process(t *testing.T, name, protocol string, do func(ctx context.Context, id string) error) *Coordinator {
	t.Helper()
	j, err := journal.New(f.store, &journal.Options{Shards: 4})
	ok(t, err)
	c, err := New(j, &f.o)
	ok(t, err)
	ok(t, c.Handle(protocol, &calls{do: do, drives: map[string]int{}}))
	d := f.space.Open(nil)
	g, err := partition.Join(t.Context(), d, f.space.Values(), "fleet", partition.Layout{Partitions: 4}, &partition.Options{
		Identity: name,
		Work: func(ctx context.Context, p partition.Partition) error {
			f.serves.Add(1)
			return c.Serve(ctx, p.Claim, p.Index)
		},
	})
	ok(t, err)
	t.Cleanup(func() {
		ok(t, g.Leave(context.Background()))
		ok(t, d.Close(context.Background()))
		ok(t, j.Close())
	})
	return c
}

func (f *fleet) ended(ctx context.Context, id string) (bool, error) {
	head, _, err := f.store.Read(ctx, id, 0)
	return err == nil && !head.Ended.IsZero(), err
}

// drives runs transactions of both types in two processes with one type each.
func (f *fleet) drives(t *testing.T) map[string]*Coordinator {
	t.Helper()
	done := func(context.Context, string) error { return nil }
	all := map[string]*Coordinator{"a": f.process(t, "first", "a", done), "b": f.process(t, "second", "b", done)}
	const each = 12 // a few in each shard
	for kind, c := range all {
		for i := range each {
			ok(t, c.Begin(t.Context(), fmt.Sprint(kind, i), kind+":x", journal.Entry{Kind: "begin"}))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for kind, c := range all {
		for i := range each {
			id := fmt.Sprint(kind, i)
			ok(t, c.Await(ctx, id, func(ctx context.Context) (bool, error) { return f.ended(ctx, id) }))
		}
	}
	return all
}

// TestDisjointTypes: if no process knows all types, each transaction still ends: a shard
// moves to other processes while a transaction of an unknown type is due in it.
func TestDisjointTypes(t *testing.T) {
	runBubble(t, "memory", func(t *testing.T) {
		f := &fleet{store: memory.NewJournal(), space: memory.NewSpace()}
		f.drives(t)
	})
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		store := journal.NewTable(db, "")
		db.Do(t, store.Create)
		f := &fleet{store: store, space: memory.NewSpace(), o: Options{Poll: 20 * time.Millisecond, Yield: 20 * time.Millisecond}}
		f.drives(t)
	}, databases.Pgx)
}

// TestUnknownType: a type that no process knows is counted, and moves its shard at growing
// intervals; others are driven meanwhile.
func TestUnknownType(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fleet{store: memory.NewJournal(), space: memory.NewSpace()}
		all := f.drives(t)
		ok(t, all["a"].Begin(t.Context(), "lost", "lost:x", journal.Entry{Kind: "begin"}))
		time.Sleep(2 * time.Hour)
		before := f.serves.Load()
		time.Sleep(2 * time.Hour)
		if n := f.serves.Load() - before; n < 4 || n > 40 {
			t.Errorf("shards were taken %d times in two hours", n)
		}
		if n := all["a"].Foreign()["lost:x"] + all["b"].Foreign()["lost:x"]; n == 0 {
			t.Error("it is not counted")
		}
		f.more(t, all, "later")
	})
}

// more drives another transaction of each type.
func (f *fleet) more(t *testing.T, all map[string]*Coordinator, id string) {
	t.Helper()
	for kind, c := range all {
		id := kind + id
		ok(t, c.Begin(t.Context(), id, kind+":x", journal.Entry{Kind: "begin"}))
		ok(t, c.Await(t.Context(), id, func(ctx context.Context) (bool, error) { return f.ended(ctx, id) }))
	}
}

// TestYieldWaitsForCalls: a running call returns before its shard moves, is recorded, and
// is not repeated.
func TestYieldWaitsForCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fleet{store: memory.NewJournal(), space: memory.NewSpace()}
		var called atomic.Int64
		slow := func(ctx context.Context, _ string) error {
			called.Add(1)
			for range 20 { // longer than Options.Yield
				time.Sleep(time.Second)
				if !Heartbeat(ctx) {
					return context.Cause(ctx)
				}
			}
			return nil
		}
		a := f.process(t, "first", "a", slow)
		for i := range 8 {
			ok(t, a.Begin(t.Context(), fmt.Sprint("a", i), "a:x", journal.Entry{Kind: "begin"}))
		}
		b := f.process(t, "second", "b", func(context.Context, string) error { return nil })
		time.Sleep(5 * time.Minute) // the new member has its share, and transactions driven there are repeated
		before := called.Load()
		for i := range 8 {
			ok(t, a.Begin(t.Context(), fmt.Sprint("again", i), "a:x", journal.Entry{Kind: "begin"}))
			ok(t, b.Begin(t.Context(), fmt.Sprint("b", i), "b:x", journal.Entry{Kind: "begin"}))
		}
		for i := range 8 {
			for _, kind := range []string{"again", "b", "a"} {
				id := fmt.Sprint(kind, i)
				ok(t, a.Await(t.Context(), id, func(ctx context.Context) (bool, error) { return f.ended(ctx, id) }))
			}
		}
		if n := called.Load() - before; n != 8 {
			t.Errorf("%d calls of 8 transactions", n)
		}
	})
}
