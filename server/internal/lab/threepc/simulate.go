package threepc

import (
	"container/heap"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
)

// Simulate runs a scenario.
func Simulate(s Scenario) *Run {
	r := &simulation{Scenario: s, shape: s.shape(), random: rand.New(rand.NewPCG(s.Seed, 3))}
	r.step(Coordinator, event{kind: started})
	for i := 1; i <= s.Participants; i++ {
		r.arm(Site(i)) // it aborts without a message
	}
	for len(r.queue) > 0 && r.queue[0].at <= r.end() {
		e := heap.Pop(&r.queue).(happening)
		r.now = e.at
		e.do()
	}
	return r.result()
}

// simulation is the state of a run.
type simulation struct {
	Scenario
	shape   shape
	random  *rand.Rand
	now     time.Duration
	queue   queue
	sites   [maxSites]site
	crashed set
	timer   [maxSites]int // how often it was set
	actions [maxSites]int
	voted   [maxSites]time.Duration
	decided [maxSites]time.Duration
	run     Run
	count   int
}

// happening is an event at an instant; events of one instant come in the order of their planning.
type happening struct {
	at    time.Duration
	order int
	do    func()
}

type queue []happening

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(happening)) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}

func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (r *simulation) after(d time.Duration, do func()) {
	r.count++
	heap.Push(&r.queue, happening{r.now + d, r.count, do})
}

// end returns the time at which a run ends; see [Run.Blocked].
func (r *simulation) end() time.Duration {
	end := 200 * delay
	for _, c := range r.Crashes {
		end = max(end, c.Back+100*delay)
	}
	if r.Cut != nil {
		end = max(end, r.Cut.From+r.Cut.For+50*delay)
	}
	return end
}

// acts counts an action of a site, and reports whether the site is alive to do it.
func (r *simulation) acts(s Site) bool {
	r.actions[s]++
	if r.now <= 30*delay {
		r.run.early[s] = r.actions[s]
	}
	for _, c := range r.Crashes {
		if c.Site == s && c.Action == r.actions[s] {
			r.crashed |= only(s)
			r.say("%s crashes", r.shape.name(s))
			if c.Back > 0 {
				r.after(c.Back, func() {
					r.crashed &^= only(s)
					r.say("%s restarts", r.shape.name(s))
					r.step(s, event{kind: restarted})
				})
			}
		}
	}
	return !r.crashed.has(s)
}

// step applies an event to a site, and sends its messages.
func (r *simulation) step(me Site, e event) {
	before := r.sites[me]
	after, sent := r.shape.step(me, before, e)
	r.sites[me] = after
	if before.phase != after.phase {
		if r.Protocol != Register || me != Coordinator { // only the register is durable
			r.run.Writes++
		}
		r.say("%s is %s", r.shape.name(me), after.phase)
		if after.phase == prepared {
			r.voted[me] = r.now
		}
		if after.phase.decided() {
			r.decided[me] = r.now
		}
	}
	for _, a := range sent {
		if !r.acts(me) {
			return
		}
		r.run.Messages++
		r.send(a)
	}
	if before != after || e.kind == suspected {
		r.arm(me)
	}
}

func (r *simulation) send(a message) {
	if r.random.Float64() < r.Loss || r.apart(a) {
		r.tell("lost: ", a)
		return
	}
	takes := delay
	if !r.Steady {
		takes = 1 + time.Duration(r.random.Int64N(int64(delay)))
	}
	r.after(takes, func() {
		if r.crashed.has(a.to) || !r.acts(a.to) {
			return
		}
		r.tell("", a)
		r.step(a.to, event{kind: received, message: a, yes: !slices.Contains(r.No, a.to)})
	})
}

// apart reports whether a message crosses the partition.
func (r *simulation) apart(a message) bool {
	if r.Cut == nil || r.now < r.Cut.From || r.Cut.For > 0 && r.now >= r.Cut.From+r.Cut.For {
		return false
	}
	side := set(0)
	for _, s := range r.Cut.Side {
		side |= only(s)
	}
	return side.has(a.from) != side.has(a.to)
}

// arm starts the timer of a site, if it waits for another.
func (r *simulation) arm(me Site) {
	r.timer[me]++
	set := r.timer[me]
	if r.shape.awaits(me, r.sites[me]) == 0 {
		return
	}
	r.after(r.patience(me), func() {
		if r.crashed.has(me) || r.timer[me] != set {
			return
		}
		r.shape.awaits(me, r.sites[me]).each(func(of Site) {
			if r.crashed.has(me) || !r.shape.awaits(me, r.sites[me]).has(of) {
				return // the event before has ended the wait
			}
			r.say("%s hears nothing from %s", r.shape.name(me), r.shape.name(of))
			r.step(me, event{kind: suspected, of: of})
		})
	})
}

// patience returns the time after which a site suspects another one. It is correct if messages take
// at most delay and none is lost. An answer takes two delays, and the step after all answers one
// more. Two sites suspect a third one at most five delays apart, and three more for each crashed
// replacement.
func (r *simulation) patience(me Site) time.Duration {
	s := r.sites[me]
	if s.round != noRound {
		return 2*delay + 1
	}
	return time.Duration(5*(1+bits.OnesCount8(uint8(s.suspects)))) * delay
}

// tell logs a message.
func (r *simulation) tell(how string, a message) {
	r.say("%s%s from %s to %s", how, a.kind, r.shape.name(a.from), r.shape.name(a.to))
}

func (r *simulation) say(format string, args ...any) {
	if !r.Log {
		return
	}
	r.run.Log = append(r.run.Log, fmt.Sprintf("%8v  ", r.now.Round(10*time.Microsecond))+fmt.Sprintf(format, args...))
}

func (r *simulation) result() *Run {
	for i := range r.Participants + 1 {
		s := Site(i)
		f := Fate{Name: r.shape.name(s), Phase: r.sites[s].phase.String(), Crashed: r.crashed.has(s), Decided: r.sites[s].phase.decided()}
		until := r.end()
		if f.Decided {
			f.At, until = r.decided[s], r.decided[s]
		}
		if r.voted[s] > 0 {
			f.Waited = until - r.voted[s]
		}
		r.run.Fates = append(r.run.Fates, f)
	}
	return &r.run
}

// Faults is the result of runs with random delays and votes, and one kind of fault.
type Faults struct {
	Protocol  Protocol      `json:"protocol"`
	Fault     string        `json:"fault"`
	Runs      int           `json:"runs"`
	Committed int           `json:"committed"` // somewhere
	Blocked   int           `json:"blocked"`
	Split     int           `json:"split"`
	Waited    time.Duration `json:"waited_ns"` // the longest from a vote to a decision, where all decide
}

// kindOfFault adds a fault to a scenario.
type kindOfFault struct {
	name  string
	spoil func(*Scenario, *rand.Rand)
}

var kindsOfFault = []kindOfFault{
	{"none but delays", func(*Scenario, *rand.Rand) {}},
	{"crashes", func(s *Scenario, random *rand.Rand) {
		for _, i := range random.Perm(s.Participants + 1)[:1+random.IntN(s.Participants)] {
			s.Crashes = append(s.Crashes, Crash{Site: Site(i), Action: 1 + random.IntN(4*s.Participants)})
		}
	}},
	{"messages lost, one in ten", func(s *Scenario, _ *rand.Rand) { s.Loss = 0.1 }},
	{"a partition that heals", func(s *Scenario, random *rand.Rand) {
		s.Cut = &Cut{From: time.Duration(random.Int64N(int64(6 * delay))), For: 60 * delay}
		for i := 1; i < s.shape().sites(); i++ {
			if random.IntN(2) == 0 {
				s.Cut.Side = append(s.Cut.Side, Site(i))
			}
		}
	}},
}

// faultRuns is the number of seeds for each kind of fault.
const faultRuns = 1000

func (r *Report) faults() {
	for _, fault := range kindsOfFault {
		for _, p := range Protocols {
			f := Faults{Protocol: p, Fault: fault.name}
			for seed := range uint64(faultRuns) {
				s := Scenario{Protocol: p, Participants: r.Participants, Seed: seed}
				random := rand.New(rand.NewPCG(seed, 4))
				if random.IntN(8) == 0 {
					s.No = []Site{Site(1 + random.IntN(r.Participants))}
				}
				fault.spoil(&s, random)
				f.add(Simulate(s))
			}
			r.Faults = append(r.Faults, f)
		}
	}
}

func (f *Faults) add(run *Run) {
	f.Runs++
	if run.Committed() {
		f.Committed++
	}
	if run.Split() {
		f.Split++
	}
	if len(run.Blocked()) > 0 {
		f.Blocked++
		return
	}
	f.Waited = max(f.Waited, run.Waited())
}

// world is the state of all sites and the messages in flight at one instant. It is comparable. A
// schedule of a model is a path through worlds.
type world struct {
	sites   [modelSites]site
	net     [kinds][modelSites]set // to whom, by kind and sender
	crashed set
	cut     set // one side of a partition; empty if there is none
	crashes uint8
}

// modelSites is the most sites of a model: a coordinator, three participants and a register.
const modelSites = 5

// choice is a possible next event.
type choice struct {
	kind    choiceKind
	message message
	yes     bool
	at      Site // that crashes, restarts or suspects
	of      Site // that is suspected
	side    set  // of a cut
	crashes bool // the acting site crashes after its write, and
	told    set  // only these receive its messages; it sends one to each
}

// actor returns the site that takes the step.
func (c choice) actor() Site {
	if c.kind == delivers {
		return c.message.to
	}
	return c.at
}

type choiceKind uint8

const (
	begins choiceKind = iota
	delivers
	suspects
	crashes
	restarts
	cuts
)

// begin returns the world in which the coordinator has sent its first messages.
func (m Model) begin() world {
	w, _ := m.after(world{}, choice{kind: begins})
	return w
}

// after returns the world after a choice, and the messages sent.
func (m Model) after(w world, c choice) (world, []message) {
	sh := m.shape()
	me, e := c.actor(), event{kind: started}
	switch c.kind {
	case delivers:
		e = event{kind: received, message: c.message, yes: c.yes}
		if !m.Asynchronous {
			w.net[c.message.kind][c.message.from] &^= only(me)
		}
	case suspects:
		e = event{kind: suspected, of: c.of}
	case restarts:
		w.crashes++
		e.kind = restarted
	case crashes:
		w.crash(c.at)
		return w, nil
	case cuts:
		w.cut = c.side
		w.drop(func(a message) bool { return w.apart(a.from, a.to) })
		return w, nil
	}
	var sent []message
	w.sites[me], sent = sh.step(me, w.sites[me], e)
	for _, a := range sent {
		if (!c.crashes || c.told.has(a.to)) && !w.lost(a) && a.kind != done { // no site reacts to done
			w.net[a.kind][a.from] |= only(a.to)
		}
	}
	if c.crashes {
		w.crash(me)
	}
	return w, sent
}

func (w *world) crash(s Site) {
	w.crashed |= only(s)
	w.crashes++
	w.drop(func(a message) bool { return a.to == s })
}

// apart reports whether a partition separates two sites.
func (w *world) apart(a, b Site) bool { return w.cut.has(a) != w.cut.has(b) }

func (w *world) lost(a message) bool { return w.crashed.has(a.to) || w.apart(a.from, a.to) }

// drop removes messages in flight.
func (w *world) drop(which func(message) bool) {
	w.each(func(a message) {
		if which(a) {
			w.net[a.kind][a.from] &^= only(a.to)
		}
	})
}

func (w *world) each(do func(message)) {
	for k := range w.net {
		for from := range w.net[k] {
			w.net[k][from].each(func(to Site) { do(message{kind(k), Site(from), to}) })
		}
	}
}

// silent reports whether no message of a site is in flight.
func (w *world) silent(s Site) bool {
	for k := range w.net {
		if w.net[k][s] != 0 {
			return false
		}
	}
	return true
}

// split reports whether two sites have decided differently. The decision of a crashed site counts:
// its user may have acted on it.
func (w *world) split(sites int) bool {
	var both [2]bool
	for _, s := range w.sites[:sites] {
		both[0] = both[0] || s.phase == committed
		both[1] = both[1] || s.phase == aborted
	}
	return both[0] && both[1]
}

// undecided returns the live sites that have not decided.
func (w *world) undecided(sh shape) (waiting set) {
	for s := range Site(sh.participants + 1) {
		if !w.crashed.has(s) && !w.sites[s].phase.decided() {
			waiting |= only(s)
		}
	}
	return waiting
}
