package saga

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestOwnersCompete: successive owners, with their predecessors still running, over targets
// that fail, are busy, and do not answer, complete every saga, with each effect once, all
// done or all undone.
func TestOwnersCompete(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { compete(t, seed) })
		})
	}
}

// moody is a target with random answers by a seed. After an undo it refuses the step, and a
// refusal is permanent.
type moody struct {
	target
	dice    *rand.Rand
	refused map[string]bool // by key
}

// call handles a call, which may not arrive.
func (m *moody) call(ctx context.Context, blocked string) error {
	m.mu.Lock()
	mood := m.dice.IntN(10)
	m.mu.Unlock()
	time.Sleep(time.Duration(mood) * 10 * time.Millisecond) // it ignores its context
	m.mu.Lock()
	key := From(ctx).Key()
	barred := slices.Contains(m.effects, blocked) || m.refused[key]
	m.mu.Unlock()
	undo := From(ctx).Operation == branch.Undo
	switch {
	case barred:
		return Fail(errSeat)
	case mood == 0:
		return errNetwork
	case mood == 1:
		return Retry(errNetwork)
	case mood == 2:
		return InProgress(50 * time.Millisecond)
	case mood == 3 && !undo && From(ctx).Branch != "z": // a step after the pivot must finally succeed
		return m.refuse(key)
	}
	if err := m.take(key); err != nil {
		return err
	}
	if mood == 4 {
		return errNetwork // the answer is lost
	}
	return nil
}

// refuse fails unless the call was done before: then it returns that answer.
func (m *moody) refuse(key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.effects, key) {
		return nil
	}
	m.refused[key] = true
	return Fail(errSeat)
}

func (m *moody) step(name string) Action[string, string] {
	return Step(name, func(ctx context.Context, input string) (string, error) {
		return input, m.call(ctx, From(ctx).Transaction+"/"+name+"/undo")
	})
}

func (m *moody) undoable(name string) Action[string, string] {
	return m.step(name).Undo("un"+name, func(ctx context.Context, _ string, _ *string) error {
		return m.call(ctx, "")
	}).Retry(Policy{First: 20 * time.Millisecond, Max: time.Second, Undos: 1000})
}

func compete(t *testing.T, seed uint64) {
	const sagas, owners = 60, 6
	m := &moody{dice: rand.New(rand.NewPCG(seed, 5)), refused: map[string]bool{}}
	d := Define("order", m.undoable("a"), m.undoable("b"), m.step("p").Pivot(), m.step("z"))
	store := memory.NewJournal()
	var work sync.WaitGroup
	for n := range owners {
		j, err := journal.New(&watched{Journal: store}, &journal.Options{Shards: 1})
		ok(t, err)
		e, err := build(j, &settings{Options: coordinator.Options{Poll: 100 * time.Millisecond, Recheck: time.Second, Concurrency: 16}}, d)
		ok(t, err)
		work.Go(func() {
			time.Sleep(time.Duration(n) * 300 * time.Millisecond)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			c := grant(int64(n + 1))
			served := make(chan error, 1)
			go func() { served <- e.coordinator.Serve(ctx, c, 0) }()
			for i := range sagas / owners {
				id := fmt.Sprint(n, "-", i)
				work.Go(func() { _ = d.Start(context.Background(), e, id, "in") })
				work.Go(func() { _ = d.Start(context.Background(), e, id, "in") })
			}
			for tries := 0; n == owners-1 && tries < 3600 && !over(t, e, sagas); tries++ {
				time.Sleep(time.Second)
			}
			if n == owners-1 {
				stop()
			}
			<-served // the others notice by themselves
			c.End(interlock.ErrReleased)
		})
		defer func() { ok(t, j.Close()) }()
	}
	work.Wait()
	judgeRace(t, m, store, sagas)
}

// over reports whether all sagas have ended.
func over(t *testing.T, e *Engine, sagas int) bool {
	heads, err := e.coordinator.Journal().Heads(context.Background(), "", 1000)
	ok(t, err)
	return len(heads) == sagas && !slices.ContainsFunc(heads, func(h driver.Head) bool { return h.Ended.IsZero() })
}

func judgeRace(t *testing.T, m *moody, store *memory.Journal, sagas int) {
	t.Helper()
	heads, err := store.Heads(context.Background(), "", 1000)
	ok(t, err)
	ends := map[string]int{}
	for _, h := range heads {
		_, records, err := store.Read(context.Background(), h.Transaction, 0)
		ok(t, err)
		decision := ""
		for _, r := range records {
			if r.Kind == recordDecide {
				decision += r.Step
			}
		}
		ends[decision]++
		did := func(key string) bool { _, n := m.count(h.Transaction + key); return n == 1 }
		a, b, p, z, una, unb := did("/a/do"), did("/b/do"), did("/p/do"), did("/z/do"), did("/a/undo"), did("/b/undo")
		if decision == decideCommit && (!a || !b || !p || !z || una || unb) ||
			decision == decideAbort && (p || z || a && !una || b && !unb) || decision != decideCommit && decision != decideAbort {
			t.Errorf("%s: decided %q: %v", h.Transaction, decision, m.did())
		}
	}
	if ends[decideCommit] == 0 || ends[decideAbort] == 0 || len(heads) != sagas {
		t.Errorf("%d sagas: %v", len(heads), ends)
	}
	unscheduled(t, store)
}
