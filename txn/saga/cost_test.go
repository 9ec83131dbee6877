package saga

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestCosts counts appends: two for a saga of any number of steps. A pivot that is not the first
// step costs one more, an abort one, and each wait two.
func TestCosts(t *testing.T) {
	steps := func(g *target, n int) (all []Stage[string]) {
		for i := range n {
			all = append(all, g.undoable(fmt.Sprint("s", i)))
		}
		return all
	}
	for name, c := range map[string]struct {
		stages func(g *target) []Stage[string]
		want   int
		end    State
	}{
		"one step":    {func(g *target) []Stage[string] { return steps(g, 1) }, 2, Succeeded},
		"seven steps": {func(g *target) []Stage[string] { return steps(g, 7) }, 2, Succeeded},
		"pivot first": {func(g *target) []Stage[string] { return []Stage[string]{g.act("p").Pivot(), g.act("y"), g.act("z")} }, 2, Succeeded},
		"pivot last":  {func(g *target) []Stage[string] { return append(steps(g, 5), g.act("p").Pivot()) }, 3, Succeeded},
		"pivot between": {func(g *target) []Stage[string] {
			return append(steps(g, 2), g.act("p").Pivot(), g.act("y"), g.act("z"))
		}, 3, Succeeded},
		"group":   {func(g *target) []Stage[string] { return []Stage[string]{g.undoable("a"), Parallel(steps(g, 5)...)} }, 2, Succeeded},
		"aborted": {func(g *target) []Stage[string] { return append(steps(g, 5), g.undoable("no", Fail(errSeat))) }, 3, Compensated},
		"aborted at once": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("no", Fail(errSeat)), g.act("p").Pivot()}
		}, 2, Compensated},
		"pivot refused": {func(g *target) []Stage[string] { return append(steps(g, 5), g.act("p", Fail(errSeat)).Pivot()) }, 4, Compensated},
		"short wait": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a"), Sleep[string]("w", 30*time.Second), g.undoable("b")}
		}, 4, Succeeded},
		"long wait": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a"), Sleep[string]("w", 2*time.Hour), g.undoable("b")}
		}, 4, Succeeded},
		"sixty steps": {func(g *target) []Stage[string] { return steps(g, 60) }, 2 + 1 + 60/driver.MaxRecords, Succeeded},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", c.stages(g)...)
			r := serve(t, nil, 1, nil, d)
			o, _ := d.Do(t.Context(), r.engine, "1", "in")
			if o.State != c.end || r.store.Appends() != c.want {
				t.Errorf("%v after %d appends, want %d: %v", o.State, r.store.Appends(), c.want, r.records(t, "1"))
			}
			if waits := strings.HasSuffix(name, "wait"); r.store.Reads() != 0 && !waits {
				t.Errorf("%d reads of a saga that began and ended here", r.store.Reads())
			}
			if looked, err := r.engine.Look(t.Context(), "1"); err != nil || !reflect.DeepEqual(o, looked) {
				t.Errorf("the outcome is %+v; the journal has %+v, %v", o, looked, err)
			}
		})
	}
}

// TestOnePlan: a saga that is driven where it began computes the list of its stages once, and
// reads no records. If another process drives it, that process and a waiter read them once
// each.
func TestOnePlan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g, plans := &target{}, 0
		d := DefineList("order", func(string) ([]Stage[string], error) {
			plans++
			return []Stage[string]{g.undoable("a"), g.act("p").Pivot(), g.act("z")}, nil
		}, g.undoable("a"), g.act("p").Pivot(), g.act("z"))
		o := &settings{Options: coordinator.Options{Notifier: &memory.Notifier{}}}
		r := serve(t, nil, 1, o, d)
		_, err := d.Do(t.Context(), r.engine, "1", "in")
		if ok(t, err); plans != 1 || r.store.Reads() != 0 {
			t.Errorf("it was planned %d times, and read %d times", plans, r.store.Reads())
		}
		elsewhere, from := idle(t, r.store, o, d), time.Now()
		_, err = d.Do(t.Context(), elsewhere.engine, "2", "in")
		if ok(t, err); plans != 3 || r.store.Reads() != 2 || time.Since(from) != 0 {
			t.Errorf("with two processes it was planned %d times, read %d times, and took %v", plans-1, r.store.Reads(), time.Since(from))
		}
	})
}

// TestWithoutANotifier: the owner of a shard finds the first transaction of another process within a
// poll, and later ones soon.
func TestWithoutANotifier(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"))
		r := serve(t, nil, 1, nil, d)
		elsewhere := idle(t, r.store, nil, d)
		for i, most := range []time.Duration{2 * time.Second, 200 * time.Millisecond, 200 * time.Millisecond} {
			from := time.Now()
			_, err := d.Do(t.Context(), elsewhere.engine, fmt.Sprint(i), "in")
			if ok(t, err); time.Since(from) > most {
				t.Errorf("number %d took %v, at most %v", i, time.Since(from), most)
			}
		}
	})
}

// TestOldRecordsAreWritten: pending records are written soon, although nothing depends
// on them.
func TestOldRecordsAreWritten(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		slow := func(name string) Action[string, string] {
			return g.beat(name, 200*time.Millisecond)
		}
		d := Define("order", slow("a"), slow("b"), slow("c"), slow("d"), slow("e"))
		r := serveBegun(t, nil, d, "1", "in")
		time.Sleep(900 * time.Millisecond)
		same(t, "records", r.records(t, "1"), "begin:", "sent:a", "sent:b", "sent:c", "sent:d", "sent:e", "done:a", "done:b", "done:c")
		_, err := r.engine.Wait(t.Context(), "1")
		ok(t, err)
	})
}

// TestLongList: the search for the next of thousands of stages does not repeat earlier
// ones, which would take longer than their calls.
func TestLongList(t *testing.T) {
	l, m := &listPlanner{}, machine{state: Running}
	for i := range 5000 {
		l.stages = append(l.stages, stage{i + 1, []step{{key: fmt.Sprint(i)}}})
	}
	for i := range l.stages {
		rest, err := l.rest(&m)
		if ok(t, err); len(rest) != len(l.stages)-i {
			t.Fatalf("%d stages are left after %d", len(rest), i)
		}
		m.steps = append(m.steps, progress{key: fmt.Sprint(i), fate: done})
	}
	if rest, err := l.rest(&m); rest != nil || err != nil {
		t.Errorf("%v, %v", rest, err)
	}
}

// TestFailingForEver: a step that must be done is refused at once, each time. It is called at
// the intervals of its policy, without a record for each call. The shortest policy is no hot
// loop. A saga that this process cannot drive writes no records.
func TestFailingForEver(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		err    error
		calls  int // of a day, at most
	}{
		"by default":      {Policy{}, Fail(errSeat), 24*60*2 + 20},
		"impatient":       {Policy{First: 1, Max: 1}, errNetwork, 24 * 3600 * 1000},
		"ongoing at once": {Policy{First: 1, Max: 1}, InProgress(0), 24 * 3600 * 1000},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			calls, day := 0, 24*time.Hour
			if c.policy.Max == 1 {
				day, c.calls = day/(24*3600), c.calls/(24*3600)
			}
			d := Define("order", g.act("p").Pivot(), Step("z", func(context.Context, string) (int, error) { calls++; return 0, c.err }).Retry(c.policy))
			r := serveBegun(t, &settings{Options: coordinator.Options{Poll: time.Minute}}, d, "1", "in")
			time.Sleep(day)
			r.quit()
			if calls > c.calls+1 || calls < 100 || r.store.Appends() > 4+12+24 { // failures are recorded when their number doubles, or after an hour
				t.Errorf("%d calls, %d appends", calls, r.store.Appends())
			}
			appends, told := r.store.Appends(), 0
			hooks := &observe.Coordinator{Foreign: func(observe.CoordinatorForeign) { told++ }}
			other := serve(t, r.store, 2, &settings{Options: coordinator.Options{Hooks: hooks}}, Define("bill", g.act("p").Pivot()))
			time.Sleep(4 * time.Hour)
			other.quit()
			if told < 100 || told > 4*60+1 || r.store.Appends() != appends {
				t.Errorf("reported %d times, %d appends more", told, r.store.Appends()-appends)
			}
		})
	}
}

// TestAllocations bounds the allocations of a saga of two steps in one process, including its
// journal in memory.
func TestAllocations(t *testing.T) {
	if testbed.Race {
		t.Skip("the race detector changes the count")
	}
	bubble(t, func(t *testing.T) {
		nothing := func(context.Context, string) (string, error) { return "done", nil }
		d := Define("order", Step("reserve", nothing).Undo("release", func(context.Context, string, *string) error { return nil }), Step("pay", nothing).Pivot())
		r := serve(t, nil, 1, nil, d)
		id := 0
		n := testing.AllocsPerRun(200, func() {
			id++
			if _, err := d.Do(t.Context(), r.engine, fmt.Sprint(id), "in"); err != nil {
				t.Fatal(err)
			}
		})
		if n > 215 {
			t.Errorf("%v allocations, at most 215", n)
		}
	})
}

// asked counts the requests that read a journal.
type asked struct {
	*memory.Journal
	n int
}

func (a *asked) Heads(ctx context.Context, behind string, limit int) ([]driver.Head, error) {
	a.n++
	return a.Journal.Heads(ctx, behind, limit)
}

func (a *asked) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	a.n++
	return a.Journal.Due(ctx, shard, behind, limit)
}

func (a *asked) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	a.n++
	return a.Journal.Read(ctx, id, after)
}

// TestUnfinishedCosts in proportion to its result, for any number of ended sagas, even if the
// journal was opened with a wrong number of shards.
func TestUnfinishedCosts(t *testing.T) {
	store := &asked{Journal: memory.NewJournal()}
	j := open(t, store, journal.Options{Shards: 64})
	for i := range 1500 {
		log, err := j.Begin(t.Context(), fmt.Sprintf("ended%04d", i), protocol+":order", time.Now(), letters["begin"])
		ok(t, err)
		ok(t, log.End(t.Context(), record(recordDecide, decideAbort, why{}), letters["end"]))
	}
	for i := range 3 {
		_, err := j.Begin(t.Context(), fmt.Sprint("running", i), protocol+":order", time.Now().Add(time.Hour), letters["begin"])
		ok(t, err)
	}
	for _, shards := range []int{64, 5} {
		store.n = 0
		list := func(behind string) (all []string) {
			for o, err := range NewOperator(open(t, store, journal.Options{Shards: shards})).List(t.Context(), Filter{Unfinished: true, After: behind}) {
				ok(t, err)
				all = append(all, o.ID)
			}
			return all
		}
		if same(t, "unfinished", list(""), "running0", "running1", "running2"); store.n > 12 {
			t.Errorf("%d requests to find three of 1503", store.n)
		}
		same(t, "the next", list("running0"), "running1", "running2")
	}
}
