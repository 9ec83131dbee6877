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
