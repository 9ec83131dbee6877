package deadlock

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// world has the tasks of several processes, their holds and waits, and notes that are read
// late and sometimes written. It has complete knowledge. A and B are locks, C is a lock of
// readers and a writer, D and E are semaphores of 2 and 3 permits.
type world struct {
	t        *testing.T
	random   *rand.Rand
	mode     Mode
	now      int
	numbers  int64
	actors   []*actor
	queues   map[string][]*actor // by resource, in order
	notes    map[noteKey][]state // all states; the last one is current
	spans    map[span]lasting    // all holds and waits so far
	verdicts int
	several  int  // verdicts in which permits of several holders matter
	waves    bool // tasks time out and crash
}

var permits = map[string]int{"D": 2, "E": 3}

// An actor is a task alone in its process. It waits for one or two resources at a time.
type actor struct {
	task
	reads   map[int64]bool  // holds and waits of C: readers share
	saw     map[noteKey]int // the last read state
	crashed bool
}

type noteKey struct {
	task   string
	number int64
	held   bool // the note of a hold
}

type state struct {
	on    string
	links []link // nil: removed
}

type span struct {
	task   string
	number int64 // negative for a wait
}

type lasting struct {
	on       string
	units    int
	from, to int // to is 0 while it lasts
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), now: 1, queues: map[string][]*actor{}, notes: map[noteKey][]state{}, spans: map[span]lasting{}}
	w.waves = w.random.IntN(2) == 0
	w.mode = max(Detect, Mode(w.random.IntN(5)-2))
	for range 2 + w.random.IntN(5) {
		w.actors = append(w.actors, &actor{saw: map[noteKey]int{}})
	}
	for _, a := range w.actors {
		w.begin(a)
	}
	return w
}

// begin makes the actor a new task, which holds nothing.
func (w *world) begin(a *actor) {
	w.numbers++
	a.task = task{id: "t" + strconv.FormatInt(w.numbers, 10), mode: w.mode, rank: rank{Priority: w.random.IntN(2), Began: int64(w.now)},
		holds: map[int64]hold{}, waits: map[int64]wait{}}
	a.reads = map[int64]bool{}
}

func (w *world) over(s span) {
	l := w.spans[s]
	l.to = w.now
	w.spans[s] = l
}

// ask makes an actor wait for a resource, which may be granted at once.
func (w *world) ask(a *actor) {
	name := string(rune('A' + w.random.IntN(5)))
	w.numbers++
	units := 1 + w.random.IntN(max(permits[name]-1, 1))
	a.waits[w.numbers] = wait{Number: w.numbers, On: name, Units: units, Of: permits[name]}
	a.reads[w.numbers] = name == "C" && w.random.IntN(2) == 0
	w.spans[span{a.id, -w.numbers}] = lasting{on: name, units: units, from: w.now}
	w.queues[name] = append(w.queues[name], a)
	w.grant(name)
}

// grant grants a resource to its waiters: a lock in order, permits to all that fit.
func (w *world) grant(name string) {
	for i := 0; i < len(w.queues[name]); {
		a := w.queues[name][i]
		number := w.first(a, name)
		if !w.free(name, a.waits[number].Units, a.reads[number]) {
			if i++; permits[name] == 0 {
				return
			}
			continue
		}
		w.queues[name] = slices.Delete(w.queues[name], i, i+1)
		w.over(span{a.id, -number})
		a.holds[number] = hold{number, name, a.waits[number].Units}
		delete(a.waits, number)
		w.spans[span{a.id, number}] = lasting{on: name, units: a.holds[number].Units, from: w.now}
	}
}

// first returns the first wait of an actor for a resource.
func (w *world) first(a *actor, name string) (first int64) {
	for n, x := range a.waits {
		if x.On == name && (first == 0 || n < first) {
			first = n
		}
	}
	return first
}

func (w *world) free(name string, units int, reads bool) bool {
	taken := 0
	for _, b := range w.actors {
		for n, h := range b.holds {
			if h.On == name && !(reads && b.reads[n]) {
				taken += h.Units
			}
		}
	}
	return taken+units <= max(permits[name], 1)
}

// drop makes an actor release all its resources, as a task that ends, gives up or crashes.
func (w *world) drop(a *actor) {
	names := map[string]bool{}
	for n, x := range a.waits {
		w.over(span{a.id, -n})
		names[x.On] = true
	}
	for n, h := range a.holds {
		w.over(span{a.id, n})
		names[h.On] = true
	}
	clear(a.waits)
	clear(a.holds)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w.queues[name] = slices.DeleteFunc(w.queues[name], func(b *actor) bool { return b == a })
		w.grant(name)
	}
}

// look runs one round of a detector: it reads notes, which may be old, and perhaps writes its own.
func (w *world) look(a *actor, faults bool) {
	if len(a.holds) == 0 {
		clear(a.saw)
	}
	h := notes{map[string][]link{}, map[string][]link{}}
	for _, key := range slices.SortedFunc(maps.Keys(w.notes), func(x, y noteKey) int { return int(x.number - y.number) }) {
		states := w.notes[key]
		i := len(states) - 1
		if faults {
			i -= w.random.IntN(i - a.saw[key] + 1) // not older than the last read state
		}
		a.saw[key] = i
		all := h.waiters
		if key.held {
			all = h.holders
		}
		all[states[i].on] = append(all[states[i].on], states[i].links...)
	}
	wanted := map[noteKey]state{}
	if len(a.holds) > 0 && len(a.waits) > 0 {
		links, v := a.step(h)
		if v != nil && w.judge(a, v) {
			return
		}
		for _, x := range links[0].Waits {
			wanted[noteKey{a.id, x.Number, false}] = state{x.On, links}
		}
		for _, x := range links[0].Holds {
			if a.mode == WaitDie {
				wanted[noteKey{a.id, x.Number, true}] = state{x.On, links[:1]}
			}
		}
	}
	for key, states := range w.notes {
		if _, ok := wanted[key]; key.task == a.id && !ok && states[len(states)-1].links != nil {
			wanted[key] = state{on: states[0].on}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(wanted), func(x, y noteKey) int { return int(x.number - y.number) }) {
		if !(faults && w.random.IntN(4) == 0) {
			w.notes[key] = append(w.notes[key], wanted[key])
		}
	}
}

// judge checks a verdict, and ends the wait. In a preventing mode, a found deadlock does not
// count, except of a task that awaits itself.
func (w *world) judge(a *actor, v *verdict) bool {
	switch {
	case v.mode != Detect:
		if c := v.cycle; len(c) != 2 || c[0].Task != a.id || c[0].compare(c[1]) >= 0 {
			w.t.Errorf("%s gives up for %+v", a.id, c)
		}
	case w.mode != Detect && len(v.cycle) > 1:
		return false
	default:
		w.exist(a, v.cycle)
	}
	w.verdicts++
	w.drop(a)
	w.begin(a)
	return true
}

// exist checks that all waits and holds of a deadlock existed at one instant, and that they form a
// deadlock. No task in it may rank below the one whose wait ends.
func (w *world) exist(a *actor, cycle []link) {
	from, to := 0, w.now
	exists := func(s span, on string, units int) {
		l, ok := w.spans[s]
		if !ok || l.on != on || l.units != units {
			w.t.Fatalf("at %d %s gives up for %+v, in which %v never existed", w.now, a.id, cycle, s)
		}
		from = max(from, l.from)
		if l.to != 0 {
			to = min(to, l.to)
		}
	}
	taken := map[string]int{}
	for i, l := range cycle {
		if (i == 0) != (l.Task == a.id) || l.compare(cycle[0]) < 0 {
			w.t.Errorf("%s gives up, not %s", a.id, l.Task)
		}
		for _, h := range l.Holds {
			exists(span{l.Task, h.Number}, h.On, h.Units)
			taken[h.On] += h.Units
		}
	}
	for _, l := range cycle {
		stuck := false
		for _, x := range l.Waits {
			exists(span{l.Task, -x.Number}, x.On, x.Units)
			stuck = stuck || taken[x.On] > 0 && taken[x.On]+x.Units > permits[x.On]
		}
		if !stuck {
			w.t.Errorf("%s gives up for %+v, in which %s can go on", a.id, cycle, l.Task)
		}
		w.several += min(permits[l.Waits[0].On], 1)
	}
	if from > to {
		w.t.Fatalf("at %d %s gives up for %+v, which did not exist at any instant: %d to %d", w.now, a.id, cycle, from, to)
	}
}

// act runs one random action of an actor.
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
	case len(a.holds) > 3 || len(a.holds) > 0 && n < 3:
		w.drop(a)
		w.begin(a)
	default:
		w.ask(a)
	}
}

// ended repeatedly ends all tasks that do not wait, in a copy of the world, and reports whether
// no waiting task remains.
func (w *world) ended() bool {
	blocked := map[*actor]bool{}
	for _, a := range w.actors {
		blocked[a] = len(a.waits) > 0
	}
	for changed := true; changed; {
		taken := map[string]int{}
		for a := range blocked {
			for _, h := range a.holds {
				if blocked[a] {
					taken[h.On] += h.Units
				}
			}
		}
		changed = false
		for a := range blocked {
			ends := true
			for _, x := range a.waits {
				ends = ends && (taken[x.On] == 0 || taken[x.On]+x.Units <= permits[x.On])
			}
			if blocked[a] && ends {
				blocked[a], changed = false, true
			}
		}
	}
	return !slices.Contains(slices.Collect(maps.Values(blocked)), true)
}

// TestWorlds runs tasks into deadlocks while notes are read late, lost, and left by crashed
// processes. Every ended wait was in a deadlock, or was ended to prevent one. Once no task acts
// any more and writes arrive, every deadlock is resolved.
func TestWorlds(t *testing.T) {
	worlds := 3000
	if more, err := strconv.Atoi(os.Getenv("INTERLOCK_SOAK_DEADLOCK")); err == nil {
		worlds = more
	}
	verdicts, several, longest := map[Mode]int{}, 0, map[Mode]int{}
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
		rounds := 0
		for ; !w.ended() && !t.Failed(); rounds++ {
			if rounds > 100 {
				t.Fatalf("world %d, mode %v: a deadlock stays", seed, w.mode)
			}
			for _, a := range w.actors {
				w.now++
				if !a.crashed {
					w.look(a, false)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("that was world %d, mode %v", seed, w.mode)
		}
		verdicts[w.mode] += w.verdicts
		several += w.several
		longest[w.mode] = max(longest[w.mode], rounds)
	}
	t.Logf("verdicts in %d worlds: %v, %d waits for permits; rounds until the last one: %v", worlds, verdicts, several, longest)
	for _, mode := range []Mode{Detect, WoundWait, WaitDie} {
		if verdicts[mode] < worlds/10 || several < worlds/10 {
			t.Errorf("the worlds have too few deadlocks")
		}
	}
}
