package guarantees

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var update = flag.Bool("update", false, "write said.json and docs/GUARANTEES.md from what the servers say")

func TestMain(m *testing.M) { testbed.Main(m) }

// collected are the guarantees of the drivers, for -update.
var collected struct {
	sync.Mutex
	cells map[string]Cells
}

// TestDriversSayWhatThePageSays runs on real servers.
func TestDriversSayWhatThePageSays(t *testing.T) {
	t.Parallel()
	table := load(t)
	collected.cells = maps.Clone(table.Said)
	check := func(t *testing.T, id string, cells Cells) {
		t.Helper()
		collected.Lock()
		defer collected.Unlock()
		collected.cells[id] = cells
		if got := table.Said[id]; !*update && !maps.Equal(got, cells) {
			t.Errorf("%s is out of date: go test ./server/internal/guarantees -update\nsaid.json %v\nthe driver %v", id, got, cells)
		}
	}
	t.Run("backends", func(t *testing.T) {
		t.Run("memory", func(t *testing.T) {
			d := openMemory()
			closed(t, d)
			g := d.Guarantees()
			check(t, "memory", CellsOf(g, g, built(t, d, system{values: true, fence: true})))
		})
		t.Run("redis-quorum", func(t *testing.T) { t.Parallel(); check(t, "redis-quorum", quorumCells(t)) })
		t.Run("kube", func(t *testing.T) { t.Parallel(); check(t, "kube", kubeCells(t)) })
		for id, s := range systems {
			t.Run(id, func(t *testing.T) { t.Parallel(); check(t, id, s.cells(t)) })
		}
	})
	if !*update || t.Failed() {
		return
	}
	table.Said = collected.cells
	text, err := json.MarshalIndent(table.Said, "", "\t")
	if err == nil {
		err = os.WriteFile("said.json", append(text, '\n'), 0o644)
	}
	if err == nil {
		err = os.WriteFile(page, []byte(table.Markdown()), 0o644)
	}
	testbed.OK(t, err)
}

// cells opens the driver on a server with each of the settings.
func (s system) cells(t *testing.T) Cells {
	addr := s.server(t, s.found...).Addr()
	found := mustOpen(t, func() (driver.Fenced, error) { return s.open(t, addr, 0) })
	set := found
	if !slices.Equal(s.found, s.set) {
		strict := s.server(t, s.set...).Addr()
		set = mustOpen(t, func() (driver.Fenced, error) { return s.open(t, strict, 0) })
	}
	return CellsOf(found.Guarantees(), set.Guarantees(), built(t, set, s))
}

func quorumCells(t *testing.T) Cells {
	open := func(delay time.Duration) driver.Fenced {
		var nodes []string
		for range 3 {
			nodes = append(nodes, testbed.Redis(t).Addr())
		}
		return mustOpen(t, func() (driver.Fenced, error) { return openQuorum(t, nodes, delay) })
	}
	found, set := open(-1), open(0)
	return CellsOf(found.Guarantees(), set.Guarantees(), built(t, set, system{}))
}

func openQuorum(t *testing.T, nodes []string, delay time.Duration) (driver.Fenced, error) {
	q, err := redis.OpenQuorum(t.Context(), dialAll(t, nodes), &redis.QuorumOptions{RestartDelay: delay})
	if err != nil {
		return nil, err
	}
	return drivertest.Advisory(q), nil
}

func kubeCells(t *testing.T) Cells {
	k := testbed.KubeAPIServer(t)
	d := mustOpen(t, func() (driver.Fenced, error) { return openKube(t, k, k.Addr(), 0) })
	return CellsOf(d.Guarantees(), d.Guarantees(), built(t, d, system{}))
}

// built tries which types can be built on a driver.
func built(t *testing.T, d driver.Fenced, s system) Abilities {
	t.Helper()
	can := Abilities{"values": s.values, "fence": s.fence, "fence-sql": s.sql, "rows": s.sql}
	var itself any = d
	if advisory := drivertest.Unwrap(d); advisory != nil {
		itself = advisory
	}
	inspector, ok := itself.(driver.Inspector)
	can["inspect"], can["waiters"] = ok, ok && showsWaiters(t, d, inspector)
	_, can["watch"] = itself.(driver.Watcher)
	_, can["break"] = itself.(driver.Breaker)
	fenced := d.Guarantees().Class == interlock.Fenced
	can["shared"], can["semaphore"], can["several"], can["elect"] = fenced && shares(t, d), fenced && permits(t, d), fenced, fenced && elects(t, d)
	can["own"] = fenced && s.values && can["inspect"] && can["watch"]
	return can
}

// showsWaiters inspects a lock that one owner holds and another waits for.
func showsWaiters(t *testing.T, d driver.Fenced, i driver.Inspector) bool {
	const name = "waiters-shown"
	acquire(t, d, name, "holder")
	defer release(t, d, name, "holder")
	waits, done := make(chan struct{}, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Name: name, Owner: "waiter", Events: driver.Events{Waiting: func(driver.Place) {
			select {
			case waits <- struct{}{}:
			default:
			}
		}}})
		done <- err
	}()
	<-waits
	state, err := i.Lock(t.Context(), name)
	cancel()
	if <-done == nil || err != nil || state.Holder == nil {
		t.Errorf("the lock is shown as %+v (%v)", state, err)
	}
	release(t, d, name, "waiter")
	return len(state.Waiters) > 0
}

func shares(t *testing.T, d driver.Fenced) bool {
	l, err := rwlock.New(d, nil)
	return made(t, err, func(ctx context.Context) error { return l.Close(ctx) })
}

func permits(t *testing.T, d driver.Fenced) bool {
	s, err := semaphore.New(d, 3, nil)
	return made(t, err, func(ctx context.Context) error { return s.Close(ctx) })
}

// elects accepts every weakness: other rows list them.
func elects(t *testing.T, d driver.Fenced) bool {
	g := d.Guarantees()
	weak := elect.Required &^ (g.ExclusionSurvives & g.TokensSurvive)
	e, err := elect.New(d, &elect.Options{Accept: weak, InProcess: !g.CrossProcess})
	return made(t, err, func(ctx context.Context) error { return e.Close(ctx) })
}

func made(t *testing.T, err error, shut func(context.Context) error) bool {
	t.Helper()
	var unmet *interlock.UnmetError
	if errors.As(err, &unmet) {
		return false
	}
	testbed.OK(t, err)
	if err := shut(t.Context()); err != nil {
		t.Error(err)
	}
	return true
}

func load(t *testing.T) *Table {
	t.Helper()
	table, err := Load()
	testbed.OK(t, err)
	return table
}
