package deadlock

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ring returns n tasks that await each other. Task i holds the lock that task i-1 awaits; the
// first one is the youngest.
func ring(n int) (all []*task) {
	for i := range n {
		all = append(all, newTask(fmt.Sprintf("t%02d", i), int64(100-i), strconv.Itoa(i), strconv.Itoa((i+1)%n)))
	}
	return all
}

// newTask returns a task that holds one lock and awaits another.
func newTask(id string, began int64, holds, awaits string) *task {
	return &task{id: id, rank: rank{Began: began}, holds: map[int64]hold{1: {1, holds, 1}}, waits: map[int64]wait{2: {2, awaits, 1, 0}}}
}

// rounds steps all tasks together until waits end. It ends them, and returns their tasks and the
// number of rounds.
func rounds(all []*task, most int) (gaveUp []*task, n int) {
	h := notes{}
	for n = 1; n <= most && len(gaveUp) == 0; n++ {
		next := notes{map[string][]link{}, map[string][]link{}}
		for _, t := range all {
			links, v := t.step(h)
			if v != nil {
				gaveUp = append(gaveUp, t)
				delete(t.waits, v.wait)
			}
			for _, w := range links[0].Waits {
				next.waiters[w.On] = append(next.waiters[w.On], links...)
			}
			for _, x := range links[0].Holds {
				next.holders[x.On] = append(next.holders[x.On], links[0])
			}
		}
		h = next
	}
	return gaveUp, n - 1
}

// TestRing: in a cycle of n tasks only the wait of the youngest ends, after two laps.
func TestRing(t *testing.T) {
	for n, want := range map[int]int{1: 2, 2: 5, 3: 7, 10: 21, maxHops: 2*maxHops + 1} {
		if got, took := rounds(ring(n), 3*n+3); len(got) != 1 || got[0].id != "t00" || took != want {
			t.Errorf("%d tasks: %v gave up after %d rounds", n, got, took)
		}
	}
	if got, _ := rounds(ring(maxHops+2), 3*maxHops); got != nil {
		t.Errorf("a cycle that is too long was found")
	}
}

// TestOtherSystems: known defects of databases' deadlock detectors, on graphs with and
// without a deadlock. No other waits end than those that must.
func TestOtherSystems(t *testing.T) {
	permit := func(x *task, of int) *task { // it awaits permits
		for n, w := range x.waits {
			w.Of = of
			x.waits[n] = w
		}
		return x
	}
	idle := func(x *task) *task { clear(x.waits); return x }
	also := func(x *task, on ...string) *task { // it awaits these, too
		for i, on := range on {
			x.waits[int64(i-len(on))] = wait{int64(i - len(on)), on, 1, x.waits[2].Of}
		}
		return x
	}
	for name, c := range map[string]struct {
		tasks []*task
		want  string // the tasks whose waits end, one after the other
	}{
		"YugabyteDB 21736 and 16068: a second wait replaces the blockers of the first": {tasks: func() []*task {
			all := ring(4)
			for _, x := range all {
				for n := range int64(4) {
					x.waits[10+n] = wait{10 + n, fmt.Sprint(x.id, " alone holds ", n), 1, 0}
				}
			}
			return all
		}(), want: "t00"},
		"YugabyteDB 16286: a blocker comes after the wait has begun": {tasks: func() []*task {
			all := []*task{newTask("a", 1, "x", "y"), idle(newTask("b", 2, "y", ""))}
			rounds(all, 4)
			return append(all, newTask("c", 3, "y", "x"))
		}(), want: "c"},
		"YugabyteDB 27747: nobody is known to block":         {tasks: []*task{newTask("a", 1, "x", "nobody"), newTask("b", 2, "y", "x")}},
		"YugabyteDB 18309: holders without a queue of waits": {tasks: []*task{newTask("a", 1, "x", "y"), idle(newTask("b", 2, "y", ""))}},
		"TiKV 5028 and 6126: the detector moves": {tasks: func() []*task {
			all := ring(3)
			rounds(all, 4) // earlier reads are lost
			return all
		}(), want: "t00"},
		"TiKV 6985: waits are registered again where they are already": {tasks: []*task{
			also(permit(newTask("a", 1, "p", "p"), 3), "p"), also(permit(newTask("b", 2, "p", "p"), 3), "p"), idle(newTask("c", 3, "p", ""))}},
		"YugabyteDB 21802: parallel requests of one task, not all of them in the deadlock": {want: "b b", tasks: []*task{
			newTask("a", 1, "x", "y"), also(newTask("b", 2, "y", "x"), "running", "x"), idle(newTask("c", 3, "running", ""))}},
		"a task waits for a cycle that it is not in": {tasks: append(ring(3), newTask("tail", 999, "x", "1")), want: "t00"},
		"a writer waits for all readers":             {tasks: append(ring(2), idle(newTask("reader", 999, "1", ""))), want: "t00"},
		"every permit is held by one that waits for a permit": {want: "c", tasks: []*task{
			permit(newTask("a", 1, "p", "p"), 3), permit(newTask("b", 2, "p", "p"), 3), permit(newTask("c", 3, "p", "p"), 3)}},
		"one permit is held by a task that runs": {tasks: []*task{
			permit(newTask("a", 1, "p", "p"), 3), permit(newTask("b", 2, "p", "p"), 3), idle(newTask("c", 3, "p", ""))}},
		"a permit, and a lock":           {want: "b", tasks: []*task{permit(newTask("a", 1, "x", "p"), 1), newTask("b", 2, "p", "x")}},
		"one of two permits, and a lock": {tasks: []*task{permit(newTask("a", 1, "x", "p"), 2), newTask("b", 2, "p", "x")}},
		"the youngest only waits for a permit that is not needed": {want: "c", tasks: []*task{
			newTask("a", 1, "x", "y"), newTask("c", 2, "y", "x"),
			{id: "d", rank: rank{Began: 3}, holds: map[int64]hold{1: {1, "p", 1}}, waits: map[int64]wait{2: {2, "x", 1, 0}}},
			permit(newTask("e", 0, "z", "p"), 3)}},
	} {
		var got []string
		for ended, _ := rounds(c.tasks, 30); ended != nil; ended, _ = rounds(c.tasks, 30) {
			for _, x := range ended {
				got = append(got, x.id)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v gave up, not %q", name, got, c.want)
		}
	}
}

// TestPriorityBeforeAge: the wait of the task with the lowest priority ends, at any age.
func TestPriorityBeforeAge(t *testing.T) {
	all := ring(4)
	for i, task := range all {
		task.rank.Priority = 1
		if i == 2 {
			task.rank.Priority = -1
		}
	}
	if got, _ := rounds(all, 20); len(got) != 1 || got[0] != all[2] {
		t.Errorf("%v gave up", got)
	}
}

// TestPrevention: in a ring without a deadlock the modes end waits at once, each by its rule.
func TestPrevention(t *testing.T) {
	for mode, want := range map[Mode]struct {
		older, younger []string // whose wait ends if the older, or the younger, task awaits the other
		rounds         int
	}{
		Detect:    {rounds: 9},
		WoundWait: {older: []string{"holder"}, rounds: 2},
		WaitDie:   {younger: []string{"waiter"}, rounds: 3},
	} {
		for began, names := range map[int64][]string{1: want.older, 3: want.younger} {
			all := []*task{newTask("holder", 2, "x", "nobody has it"), newTask("waiter", began, "y", "x")}
			var got []string
			for _, x := range all {
				x.mode = mode
			}
			gaveUp, took := rounds(all, 9)
			for _, x := range gaveUp {
				got = append(got, x.id)
			}
			if !slices.Equal(got, names) || got != nil && took != want.rounds {
				t.Errorf("%v: %v gave up after %d rounds", mode, got, took)
			}
		}
	}
}

// TestConfirmationNeedsTheSameWait: if a task changes its hold or wait before it confirms it, no
// wait ends, in each round of the two laps.
func TestConfirmationNeedsTheSameWait(t *testing.T) {
	for name, change := range map[string]func(*task){
		"waits again": func(t *task) { t.waits[9] = wait{9, t.waits[2].On, 1, 0}; delete(t.waits, 2) },
		"holds again": func(t *task) { t.holds[9] = hold{9, t.holds[1].On, 1}; delete(t.holds, 1) },
		"no wait":     func(t *task) { t.waits[9] = wait{9, "else", 1, 0}; delete(t.waits, 2) },
		"no hold":     func(t *task) { delete(t.holds, 1) },
	} {
		for who, confirms := range []int{7, 5, 6} { // in this round; the first one is its own verdict
			for at := 2; at <= confirms; at++ {
				if !changed(t, ring(3), who, at, change) {
					t.Errorf("%s in round %d: a wait ends for what task %d held or awaited before", name, at, who)
				}
			}
			if changed(t, ring(3), who, confirms+1, change) && who > 0 {
				t.Errorf("%s: round %d is not the last in which task %d may do so", name, confirms, who)
			}
		}
	}
}

// changed steps all tasks, and changes one of them before a round. It reports whether no wait ends
// because of its former state, or without another lap.
func changed(t *testing.T, all []*task, who, at int, change func(*task)) bool {
	h := notes{}
	for n := 1; n < 30; n++ {
		if n == at {
			change(all[who])
		}
		next := map[string][]link{}
		for _, x := range all {
			links, v := x.step(h)
			if v != nil {
				return n >= at+len(all) && !slices.ContainsFunc(v.cycle, func(l link) bool {
					return l.Task == all[who].id && (all[who].holds[l.Holds[0].Number] != l.Holds[0] || all[who].waits[l.Waits[0].Number] != l.Waits[0])
				})
			}
			for _, w := range links[0].Waits {
				next[w.On] = append(next[w.On], links...)
			}
		}
		h.waiters = next
	}
	return true
}

// TestBounds: the published links of a task are bounded, for any notes, and do not depend on
// the order of reading.
func TestBounds(t *testing.T) {
	x := newTask("t", 0, "a", "b")
	x.rank.Priority = 9
	var many []link
	for i := range 1000 {
		many = append(many, link{Task: fmt.Sprint(i), Rank: rank{Began: int64(i)}, Hops: i % 40, Suspects: uint64(i), Holds: []hold{{1, "c", 1}}})
	}
	many = append(many, link{Task: "not awaited", Rank: rank{Priority: -1}})
	published, _ := x.step(notes{waiters: map[string][]link{"a": many}})
	if len(published) != maxLinks+1 || len(published[0].Confirms) != maxConfirms || published[maxLinks].Hops > 3 {
		t.Errorf("%d links with %d confirmations", len(published), len(published[0].Confirms))
	}
	if slices.ContainsFunc(published, func(l link) bool { return l.Task == "not awaited" }) {
		t.Error("a task that blocks nobody is passed on")
	}
	slices.Reverse(many)
	if again, _ := x.step(notes{waiters: map[string][]link{"a": many}}); !reflect.DeepEqual(again, published) {
		t.Error("what is published depends on the order in which notes are read")
	}
}
