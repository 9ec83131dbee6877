package deadlock

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// world is tasks of several processes, what they hold and await, and notes that are read late
// and written sometimes. It knows everything.
type world struct {
	t        *testing.T
	random   *rand.Rand
	now      int
	numbers  int64
	actors   []*actor
	waiting  map[string][]*actor // by resource, in order
	notes    map[noteKey][]state // all states; the last one is the present
	spans    map[span]lasting    // every hold and wait there was
	verdicts int
	waves    bool // tasks time out and crash
}

// An actor is a task alone in its process. It waits for one or two resources at a time.
type actor struct {
	task
	shared  map[int64]bool  // of holds and waits: readers share
	saw     map[noteKey]int // which state was read last
	crashed bool
}

type noteKey struct {
	task string
	wait int64
}

type state struct {
	awaits string
	probes []probe // nil: removed
}

type span struct {
	task   string
	number int64 // negative for a wait
}

type lasting struct {
	resource string
	from, to int // to is 0 while it lasts
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), now: 1, waiting: map[string][]*actor{}, notes: map[noteKey][]state{}, spans: map[span]lasting{}}
	w.waves = w.random.IntN(2) == 0
	for range 2 + w.random.IntN(5) {
		w.actors = append(w.actors, &actor{saw: map[noteKey]int{}})
	}
	for _, a := range w.actors {
		w.begin(a)
	}
	return w
}

// begin makes a new task of an actor, which holds nothing.
func (w *world) begin(a *actor) {
	w.numbers++
	a.task = task{id: "t" + strconv.FormatInt(w.numbers, 10), rank: rank{Priority: w.random.IntN(2), Began: int64(w.now)},
		holds: map[int64]Resource{}, waits: map[int64]Resource{}}
	a.shared = map[int64]bool{}
}

func (w *world) over(s span) {
	l := w.spans[s]
	l.to = w.now
	w.spans[s] = l
}

// ask makes an actor wait for a resource, which it may get at once.
func (w *world) ask(a *actor) {
	name := string(rune('A' + w.random.IntN(4)))
	w.numbers++
	a.waits[w.numbers] = Resource{Name: name}
	a.shared[w.numbers] = w.random.IntN(4) == 0
	w.spans[span{a.id, -w.numbers}] = lasting{resource: name, from: w.now}
	w.waiting[name] = append(w.waiting[name], a)
	w.grant(name)
}

// grant gives a resource to those that wait for it, in order.
func (w *world) grant(name string) {
	for len(w.waiting[name]) > 0 {
		a := w.waiting[name][0]
		var wait int64
		for n, r := range a.waits {
			if r.Name == name && (wait == 0 || n < wait) {
				wait = n
			}
		}
		for _, b := range w.actors {
			for hold, r := range b.holds {
				if r.Name == name && !(a.shared[wait] && b.shared[hold]) {
					return
				}
			}
		}
		w.waiting[name] = w.waiting[name][1:]
		w.over(span{a.id, -wait})
		delete(a.waits, wait)
		a.holds[wait] = Resource{Name: name}
		w.spans[span{a.id, wait}] = lasting{resource: name, from: w.now}
	}
}

// drop makes an actor give up all it has, as a task that ends, gives up or crashes does.
func (w *world) drop(a *actor) {
	names := map[string]bool{}
	for wait, r := range a.waits {
		w.over(span{a.id, -wait})
		names[r.Name] = true
	}
	for hold, r := range a.holds {
		w.over(span{a.id, hold})
		names[r.Name] = true
	}
	clear(a.waits)
	clear(a.holds)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w.waiting[name] = slices.DeleteFunc(w.waiting[name], func(b *actor) bool { return b == a })
		w.grant(name)
	}
}

// look is one round of a detector: it reads notes, which may be old, and writes its own, or not.
func (w *world) look(a *actor, faults bool) {
	if len(a.holds) == 0 {
		clear(a.saw)
	}
	heard := map[Resource][]probe{}
	for _, key := range slices.SortedFunc(maps.Keys(w.notes), func(x, y noteKey) int { return int(x.wait - y.wait) }) {
		states := w.notes[key]
		i := len(states) - 1
		if faults {
			i -= w.random.IntN(i - a.saw[key] + 1) // not older than what was seen
		}
		a.saw[key] = i
		r := Resource{Name: states[i].awaits}
		heard[r] = append(heard[r], states[i].probes...)
	}
	waits := a.waits
	if len(a.holds) == 0 {
		a.waits = nil
	}
	published, v := a.step(heard)
	a.waits = waits
	if v != nil {
		w.judge(a, v)
		return
	}
	for key, states := range w.notes {
		if last := states[len(states)-1]; key.task == a.id && last.probes != nil && published[key.wait] == nil && !(faults && w.random.IntN(4) == 0) {
			w.notes[key] = append(states, state{awaits: last.awaits})
		}
	}
	for wait, probes := range published {
		if !(faults && w.random.IntN(4) == 0) {
			key := noteKey{a.id, wait}
			w.notes[key] = append(w.notes[key], state{awaits: a.waits[wait].Name, probes: probes})
		}
	}
}

// judge checks a verdict: all waits and holds of the cycle existed at one instant, and no task
// of it ranks below the one that gives up.
func (w *world) judge(a *actor, v *verdict) {
	w.verdicts++
	from, to := 0, w.now
	exists := func(s span, resource string) {
		l, ok := w.spans[s]
		if !ok || l.resource != resource {
			w.t.Fatalf("at %d %s gives up for %+v, in which %v never existed", w.now, a.id, v.cycle, s)
		}
		from = max(from, l.from)
		if l.to != 0 {
			to = min(to, l.to)
		}
	}
	for i, l := range v.cycle {
		exists(span{l.Task, -l.Wait}, l.Awaits)
		if next := v.cycle[(i+1)%len(v.cycle)]; i+1 < len(v.cycle) {
			exists(span{next.Task, next.Hold}, l.Awaits)
		}
		if l.below(a.rank, a.id) {
			w.t.Errorf("%s gives up, but %s ranks below it", a.id, l.Task)
		}
	}
	if from > to {
		w.t.Fatalf("at %d %s gives up for %+v, which did not exist at any instant: %d to %d", w.now, a.id, v.cycle, from, to)
	}
	if v.cycle[0].Task != a.id {
		w.t.Errorf("%s gives up for a cycle of %s", a.id, v.cycle[0].Task)
	}
	w.drop(a)
	w.begin(a)
}

// act lets an actor do something of its own.
func (w *world) act(a *actor) {
	switch n := w.random.IntN(20); {
	case a.crashed:
		return
	case len(a.waits) > 0 && w.waves && n == 0: // its wait has timed out
		w.drop(a)
		w.begin(a)
	case w.waves && n == 1 && w.random.IntN(10) == 0:
		w.drop(a)
		a.crashed = true
	case len(a.waits) > 0 && n > 2, len(a.waits) > 1:
	case len(a.holds) > 2 || len(a.holds) > 0 && n < 4:
		w.drop(a)
		w.begin(a)
	default:
		w.ask(a)
	}
}

// cycle is a task that is in a deadlock; nil if there is none.
func (w *world) cycle() *actor {
	blocked := map[*actor]bool{}
	for _, a := range w.actors {
		blocked[a] = len(a.waits) > 0
	}
	for changed := true; changed; {
		changed = false
		for _, a := range w.actors {
			ends := true // no wait leads to a blocked holder
			for _, r := range a.waits {
				for _, b := range w.actors {
					for _, held := range b.holds {
						ends = ends && !(held.Name == r.Name && blocked[b])
					}
				}
			}
			if blocked[a] && ends {
				blocked[a], changed = false, true
			}
		}
	}
	for _, a := range w.actors {
		if blocked[a] {
			return a
		}
	}
	return nil
}

// TestWorlds lets tasks run into deadlocks while notes are read late, lost, and left by crashed
// processes. Every verdict is for a cycle that existed. When nobody acts any more and writes
// arrive, every deadlock is resolved.
func TestWorlds(t *testing.T) {
	worlds := 3000
	if more, err := strconv.Atoi(os.Getenv("INTERLOCK_SOAK_DEADLOCK")); err == nil {
		worlds = more
	}
	verdicts := 0
	for seed := range worlds {
		w := newWorld(t, uint64(seed))
		for ; w.now < 150 && !t.Failed(); w.now++ {
			a := w.actors[w.random.IntN(len(w.actors))]
			if w.random.IntN(3) == 0 {
				w.act(a)
			} else if !a.crashed {
				w.look(a, true)
			}
		}
		for rounds := 0; w.cycle() != nil && !t.Failed(); rounds++ {
			if rounds > 100 {
				t.Fatalf("world %d: %s stays in a deadlock", seed, w.cycle().id)
			}
			for _, a := range w.actors {
				w.now++
				if !a.crashed {
					w.look(a, false)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("that was world %d", seed)
		}
		verdicts += w.verdicts
	}
	t.Logf("%d verdicts in %d worlds", verdicts, worlds)
	if verdicts < worlds/2 {
		t.Errorf("only %d verdicts: the worlds have too few deadlocks", verdicts)
	}
}

// ring is n tasks that await each other. Task i holds what task i-1 awaits.
func ring(n int) []*task {
	var all []*task
	for i := range n {
		all = append(all, &task{id: fmt.Sprintf("t%02d", i), rank: rank{Began: int64(100 - i)},
			holds: map[int64]Resource{1: {Name: strconv.Itoa(i)}}, waits: map[int64]Resource{2: {Name: strconv.Itoa((i + 1) % n)}}})
	}
	return all
}

// rounds steps all tasks together until one gives up, and returns who, and after how many rounds.
func rounds(all []*task, most int) (gaveUp []*task, n int) {
	heard := map[Resource][]probe{}
	for n = 1; n <= most && len(gaveUp) == 0; n++ {
		next := map[Resource][]probe{}
		for _, t := range all {
			published, v := t.step(heard)
			if v != nil {
				gaveUp = append(gaveUp, t)
			}
			for wait, probes := range published {
				for _, p := range probes {
					if e := p.end(); e.Task != t.id || e.Wait != wait { // probes share no memory
						return nil, -1
					}
				}
				next[t.waits[wait]] = append(next[t.waits[wait]], probes...)
			}
		}
		heard = next
	}
	return gaveUp, n - 1
}

// TestRing: of a cycle of n tasks the youngest gives up after two laps, and nobody else.
func TestRing(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, maxPath} {
		if got, took := rounds(ring(n), 3*n+3); len(got) != 1 || got[0].id != "t00" || took != 2*n+1 {
			t.Errorf("%d tasks: %v gave up after %d rounds", n, got, took)
		}
	}
	if got, _ := rounds(ring(maxPath+1), 200); got != nil {
		t.Errorf("a cycle that is too long was found")
	}
}

// TestEveryBlockerCounts: a task that awaits a second resource still awaits the first one. (A
// known defect of another system: the second wait replaced the blockers of the first.)
func TestEveryBlockerCounts(t *testing.T) {
	for n := 3; n < 8; n++ {
		for i := range n {
			all := ring(n)
			for wait := range int64(4) {
				all[i].waits[10+wait] = Resource{Name: "held by nobody"}
			}
			if got, _ := rounds(all, 30); len(got) != 1 || got[0] != all[0] {
				t.Errorf("of %d tasks, of which %d awaits more, %v gave up", n, i, got)
			}
		}
	}
}

// TestTailOfACycle: a task that awaits a cycle without being in it does not give up, and its
// probes pass each task of the cycle once.
func TestTailOfACycle(t *testing.T) {
	all := append(ring(3), &task{id: "tail", rank: rank{Began: 999}, holds: map[int64]Resource{1: {Name: "x"}}, waits: map[int64]Resource{2: {Name: "1"}}})
	heard := map[Resource][]probe{}
	for range 20 {
		next := map[Resource][]probe{}
		for _, x := range all {
			published, v := x.step(heard)
			if v != nil && x != all[0] {
				t.Fatalf("%s gave up", x.id)
			}
			for wait, probes := range published {
				for _, p := range probes {
					if len(p.Path) > len(all) {
						t.Fatalf("%s goes round in %+v", p.Path[0].Task, p.Path)
					}
				}
				next[x.waits[wait]] = append(next[x.waits[wait]], probes...)
			}
		}
		heard = next
	}
}

// TestSharedResource: a writer awaits all readers, so one that awaits the writer is enough.
func TestSharedResource(t *testing.T) {
	all := ring(2)
	all = append(all, &task{id: "reader", rank: rank{Began: 200}, holds: map[int64]Resource{3: {Name: "1"}}})
	if got, _ := rounds(all, 20); len(got) != 1 || got[0] != all[0] {
		t.Errorf("%v gave up", got)
	}
}

// TestPriorityBeforeAge: the task of lowest priority gives up, however old it is.
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

// TestConfirmationNeedsTheSameWait: a task that has stopped to wait between the two laps, or has
// released and acquired again, does not confirm.
func TestConfirmationNeedsTheSameWait(t *testing.T) {
	for name, change := range map[string]func(*task){
		"waits again": func(t *task) { t.waits[9] = t.waits[2]; delete(t.waits, 2) },
		"holds again": func(t *task) { t.holds[9] = t.holds[1]; delete(t.holds, 1) },
		"no wait":     func(t *task) { delete(t.waits, 2) },
		"no hold":     func(t *task) { delete(t.holds, 1) },
	} {
		for i := range 3 {
			all := ring(3)
			var path []link
			for j, x := range all {
				hold := int64(1)
				if j == 0 {
					hold = 0
				}
				path = append(path, x.link(hold, 2, x.waits[2]))
			}
			change(all[i])
			p := probe{Path: path, Hold: 1, Confirmed: max(i, 1)}
			if i == 0 {
				p.Confirmed = 3
			}
			published, v := all[i].step(map[Resource][]probe{{Name: strconv.Itoa(i)}: {p}})
			if v != nil {
				t.Errorf("%s: task %d gives up", name, i)
			}
			for _, probes := range published {
				for _, p := range probes {
					if p.Confirmed > i {
						t.Errorf("%s: task %d confirms", name, i)
					}
				}
			}
		}
	}
}

// TestBounds: what a task publishes is bounded, whatever it hears.
func TestBounds(t *testing.T) {
	x := &task{id: "t", rank: rank{Priority: 9}, holds: map[int64]Resource{1: {Name: "a"}}, waits: map[int64]Resource{2: {Name: "b"}}}
	var many []probe
	for i := range 1000 {
		many = append(many, probe{Path: []link{{Task: fmt.Sprint(i % 100), Wait: int64(i), Awaits: "a"}}})
		many = append(many, probe{Path: []link{{Task: "low", Rank: rank{Priority: -1}, Wait: int64(i), Awaits: "a"}}})
	}
	many = append(many, probe{Path: []link{{Task: "high", Rank: rank{Priority: 8}}, x.link(1, 2, Resource{Name: "b"})}, Confirmed: 1})
	published, _ := x.step(map[Resource][]probe{{Name: "a"}: many})
	if n := len(published[2]); n != maxProbes {
		t.Errorf("%d probes", n)
	}
	of := map[string]int{}
	for _, p := range published[2] {
		of[p.Path[0].Task]++
	}
	if of["low"] != maxRoutes || of["high"] != 1 {
		t.Errorf("probes were chosen of %v", of)
	}
	slices.Reverse(many)
	again, _ := x.step(map[Resource][]probe{{Name: "a"}: many})
	if !slices.EqualFunc(again[2], published[2], func(a, b probe) bool { return slices.Equal(a.Path, b.Path) }) {
		t.Error("the choice depends on the order in which notes are read")
	}
}
