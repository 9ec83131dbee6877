package sequence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// The model explores all states of the machine. In each state, time may pass, the process may
// crash, and the source may answer. Every event may be offered, so each is lost, repeated and
// reordered in every way. Every operation may fail, with its effect or without. An independent
// specification judges the machine: a set of delivered events, a set of held ones, and a set of
// open holes.

// model is one exploration.
type model struct {
	t      *testing.T
	name   string
	rules  rules
	events []Position
	faults int // operations that may fail on one path
	seen   map[string]bool
	todo   []world
}

// world is the machine, the store and the specification's view.
type world struct {
	now    int
	m      machine
	faults int // that may still happen
	path   *trail

	at      Position // in the store
	holes   set      // open in the store
	done    set      // delivered, in order or late
	held    set      // accepted
	since   [64]int  // when it was accepted
	alerted set      // reported as overdue
	asked   set      // of the source
	wanted  *Hole    // a fetch without an answer yet
	resumed bool
	broken  bool // an operation of this input failed
}

const unit = time.Second

// trail is the steps that led to a world.
type trail struct {
	before *trail
	what   string
	at     any
}

// then returns the trail with one more step.
func (t *trail) then(what string, at any) *trail { return &trail{t, what, at} }

// String returns the steps in order.
func (t *trail) String() string {
	if t == nil {
		return ""
	}
	return fmt.Sprint(t.before, " ", t.what, " ", t.at)
}

// set is a set of positions, of few epochs and few events.
type set uint64

func bit(p Position) int { return int(p.Epoch*8 + p.Seq) }

func (s set) has(p Position) bool { return s>>bit(p)&1 == 1 }
func (s *set) add(p Position)     { *s |= 1 << bit(p) }
func (s *set) drop(p Position)    { *s &^= 1 << bit(p) }
func (s set) size() int64         { return int64(bits.OnesCount64(uint64(s))) }

func (s set) all(yield func(Position) bool) {
	for i := range 64 {
		if s>>i&1 == 1 && !yield(Position{int64(i / 8), int64(i % 8)}) {
			return
		}
	}
}

// String lists the positions.
func (s set) String() string { return fmt.Sprint(slices.Collect(s.all)) }

func (w *world) time() time.Time { return time.Unix(1000, 0).Add(time.Duration(w.now) * unit) }

func (w world) clone() world {
	w.m.held = slices.Clone(w.m.held)
	return w
}

// key returns the same text for worlds with the same behavior.
func (w *world) key(wait int) string {
	var b []byte
	number := func(numbers ...int) {
		for _, n := range numbers {
			b = append(b, byte(n))
		}
	}
	rel := func(t time.Time) int {
		if t.IsZero() {
			return -1
		}
		return max(0, int(t.Sub(w.time())/unit))
	}
	flag := func(f bool) int {
		if f {
			return 1
		}
		return 0
	}
	number(bit(w.at), bit(w.m.last), flag(w.m.loaded), int(w.m.holes), int(w.m.phase), rel(w.m.deadline), rel(w.m.retry),
		min(w.m.failures, 1), w.m.moves, w.m.most, w.faults, flag(w.resumed))
	if w.wanted != nil {
		number(int(w.wanted.Epoch), int(w.wanted.From), int(w.wanted.To))
	}
	number(-1)
	for _, h := range w.m.held {
		number(bit(h.event.Position), flag(h.fetched), min(wait, int(w.time().Sub(h.at)/unit)))
	}
	for _, s := range []set{w.holes, w.done, w.alerted, w.asked, w.held} {
		b = binary.BigEndian.AppendUint64(b, uint64(s))
	}
	return string(b)
}

func (mo *model) fail(w *world, format string, args ...any) {
	mo.t.Helper()
	mo.t.Fatalf("%s: %s\nafter%v\nstore at %v, holes %v, done %v, held %v\nmachine %+v", mo.name, fmt.Sprintf(format, args...),
		w.path, w.at, w.holes, w.done, w.held, w.m)
}

func (mo *model) explore() int {
	mo.seen = map[string]bool{}
	mo.add(world{m: machine{rules: mo.rules}, faults: mo.faults})
	for len(mo.todo) > 0 {
		w := mo.todo[len(mo.todo)-1]
		mo.todo = mo.todo[:len(mo.todo)-1]
		mo.ends(w.clone())
		mo.actions(w)
	}
	return len(mo.seen)
}

func (mo *model) add(w world) {
	if k := w.key(int(mo.rules.wait / unit)); !mo.seen[k] {
		mo.seen[k] = true
		mo.todo = append(mo.todo, w)
	}
}

// actions explores every possible next event.
func (mo *model) actions(w world) {
	for _, p := range mo.events {
		mo.input(w, "offer", input{kind: offer, event: Event{Key: "k", Position: p}})
	}
	later := w.clone()
	later.now++
	mo.input(later, "tick", input{kind: tick})
	if mo.rules.halt && w.m.phase == halted {
		resumed := w.clone()
		resumed.resumed = true
		mo.input(resumed, "resume", input{kind: resume})
	}
	mo.answers(w)
	mo.elsewhere(w)
	mo.abandons(w)
	crashed := w.clone()
	if crashed.faults > 0 {
		crashed.faults--
		crashed.path = crashed.path.then("crash", "")
		crashed.m, crashed.wanted = machine{rules: mo.rules}, nil
		crashed.held, crashed.alerted, crashed.asked = 0, 0, 0 // the source still has unacknowledged events
		crashed.resumed = false
		mo.add(crashed)
	}
}

// elsewhere makes another process move the key: it delivers the next event, or records it as
// missing.
func (mo *model) elsewhere(w world) {
	next := Position{w.at.Epoch, w.at.Seq + 1}
	if w.faults == 0 || !slices.Contains(mo.events, next) {
		return
	}
	for _, missing := range []bool{false, true} {
		moved := w.clone()
		moved.faults--
		moved.at = next
		if missing {
			moved.path = moved.path.then("elsewhere a hole at", next)
			moved.holes.add(next)
		} else {
			moved.path = moved.path.then("elsewhere", next)
			moved.done.add(next)
		}
		mo.add(moved)
	}
}

// abandons makes the claim of all held events end, or of the first.
func (mo *model) abandons(w world) {
	if w.faults == 0 || len(w.m.held) == 0 {
		return
	}
	first := w.m.held[0].event.Position
	for _, gone := range []func(Event) bool{func(Event) bool { return true }, func(e Event) bool { return e.Position == first }} {
		left := w.clone()
		left.faults--
		for _, h := range w.m.held {
			if gone(h.event) {
				left.held.drop(h.event.Position)
			}
		}
		mo.input(left, "abandon", input{kind: abandon, gone: gone})
	}
}

// answers makes the source answer: with no event, all, the first, the last.
func (mo *model) answers(w world) {
	if w.wanted == nil {
		return
	}
	asked := *w.wanted
	var all []Event
	for seq := asked.From; seq <= asked.To; seq++ {
		all = append(all, Event{Key: "k", Position: Position{asked.Epoch, seq}})
	}
	for _, events := range [][]Event{nil, all, all[:1], all[len(all)-1:]} {
		answered := w.clone()
		answered.wanted = nil
		if answered.m.awaits(asked) {
			mo.input(answered, "fetched", input{kind: fetched, events: events})
		}
	}
}

// input passes an input to the machine, and follows every outcome of its effects.
func (mo *model) input(w world, name string, in input) {
	w = w.clone()
	w.path = w.path.then(name, in.event.Position)
	w.broken = false
	mo.step(w, in, in)
}

func (mo *model) step(w world, in, cause input) {
	effects := w.m.Step(w.time(), in)
	for i, e := range effects {
		if e.kind <= fill && i != len(effects)-1 {
			mo.fail(&w, "an operation is not the last effect")
		}
		mo.judge(&w, e, cause)
	}
	mo.bounds(&w)
	op := w.m.doing
	if op == nil {
		if due := w.m.due(); !due.IsZero() && !due.After(w.time()) {
			mo.fail(&w, "a tick is asked for at once, when one has just been")
		}
		mo.add(w)
		return
	}
	if w.faults > 0 {
		failed := w.clone()
		failed.faults--
		failed.broken = true
		failed.path = failed.path.then("(fails)", "")
		mo.step(failed, input{kind: done, err: errors.New("failed")}, cause)
		if op.kind != load {
			uncertain := w.clone()
			uncertain.faults--
			uncertain.broken = true
			uncertain.path = uncertain.path.then("(uncertain)", "")
			mo.store(&uncertain, *op)
			mo.step(uncertain, input{kind: done, err: errors.New("uncertain")}, cause)
		}
	}
	mo.step(w, mo.store(&w, *op), cause)
}

// store executes an operation like a store.
func (mo *model) store(w *world, op effect) input {
	in := input{kind: done}
	switch op.kind {
	case deliver:
		if w.at != w.m.last {
			in.err = ErrConflict
			return in
		}
		for _, e := range op.events {
			if !w.at.first(e.Position) {
				mo.fail(w, "%v is delivered after %v", e.Position, w.at)
			}
			for p := range w.held.all {
				if p.Before(e.Position) {
					mo.fail(w, "%v is delivered before %v, which is held", e.Position, p)
				}
			}
			mo.deliver(w, e.Position)
			w.at = e.Position
			w.held.drop(e.Position) // it is delivered, even if the machine loses it
		}
		w.resumed = false
	case open:
		if w.at != w.m.last {
			in.err = ErrConflict
			return in
		}
		mo.open(w, op.hole)
	case fill:
		p := op.events[0].Position
		if !w.holes.has(p) {
			in.err, in.state = ErrNoHole, w.state()
			return in
		}
		w.holes.drop(p)
		mo.deliver(w, p)
		w.held.drop(p)
	}
	in.state = w.state()
	return in
}

func (w *world) state() State { return State{Position: w.at, Holes: w.holes.size()} }

func (mo *model) deliver(w *world, p Position) {
	if w.done.has(p) {
		mo.fail(w, "%v is delivered twice", p)
	}
	w.done.add(p)
}

// open checks that a hole may be recorded: its wait has ended, it was reported, the source and the
// operator were asked, and it contains no accepted event.
func (mo *model) open(w *world, h Hole) {
	if h.empty() {
		mo.fail(w, "an empty hole %+v", h)
	}
	waited := false
	for p := range w.held.all {
		waited = waited || p.Epoch == h.Epoch && p.Seq > h.To && w.now-w.since[bit(p)] >= int(mo.rules.wait/unit)
		if h.has(p) {
			mo.fail(w, "%v is held and is to be a hole", p)
		}
	}
	if !waited {
		mo.fail(w, "hole %+v before the wait has ended", h)
	}
	if mo.rules.fetch > 0 && !w.asked.has(Position{h.Epoch, h.From}) {
		mo.fail(w, "hole %+v, and the source was not asked", h)
	}
	if mo.rules.halt && !w.resumed {
		mo.fail(w, "hole %+v, and the key was not resumed", h)
	}
	for seq := h.From; seq <= h.To; seq++ {
		p := Position{h.Epoch, seq}
		if w.done.has(p) || !w.alerted.has(p) {
			mo.fail(w, "%v is to be a hole: done %v, alerted %v", p, w.done.has(p), w.alerted.has(p))
		}
		w.holes.add(p)
	}
	w.at = Position{h.Epoch, h.To}
	w.resumed = false
}

// judge checks a reported effect.
func (mo *model) judge(w *world, e effect, cause input) {
	if e.kind >= noteGap && e.kind <= noteHalted && e.kind != noteRecorded && w.m.last != w.at {
		mo.fail(w, "hole %+v is reported, and the key was moved elsewhere", e.hole)
	}
	switch e.kind {
	case noteOverdue:
		for seq := e.hole.From; seq <= e.hole.To; seq++ {
			w.alerted.add(Position{e.hole.Epoch, seq})
		}
	case fetch:
		if n := e.hole.To - e.hole.From + 1; n > int64(mo.rules.limit) {
			mo.fail(w, "%d events are asked for", n)
		}
		w.asked.add(Position{e.hole.Epoch, e.hole.From})
		w.wanted = &e.hole
	case settle:
		mo.told(w, e.events[0].Position, e.outcome)
		w.held.drop(e.events[0].Position)
	case answer:
		p := cause.event.Position
		switch e.outcome {
		case Refused:
			mo.refused(w, e.err)
		case Held:
			if w.held.has(p) || w.done.has(p) && w.m.last == w.at {
				mo.fail(w, "%v is held again", p)
			}
			w.held.add(p)
			w.since[bit(p)] = w.now
		case Repeated:
			if _, found := w.m.find(p); !found {
				mo.fail(w, "%v is repeated, and is not held", p)
			}
		default:
			mo.told(w, p, e.outcome)
		}
	}
}

// told checks an outcome that permits an acknowledgement.
func (mo *model) told(w *world, p Position, o Outcome) {
	if o == Stale && p.Epoch < w.at.Epoch && !w.holes.has(p) && !w.done.has(p) {
		return
	}
	if !w.done.has(p) && !(o == Stale && p.Epoch < w.at.Epoch) {
		mo.fail(w, "%v is reported as %v, and was not delivered", p, o)
	}
}

func (mo *model) refused(w *world, err error) {
	var full *FullError
	var stands *HaltedError
	switch {
	case errors.As(err, &full) && len(w.m.held) >= mo.rules.limit:
	case errors.As(err, &stands) && mo.rules.halt && w.m.phase == halted && w.m.last == w.at:
	case w.broken:
	default:
		mo.fail(w, "refused without need: %v", err)
	}
}

// bounds checks that the held events are those of the specification, in order, and within the
// bound.
func (mo *model) bounds(w *world) {
	own, limit := 0, mo.rules.limit
	if mo.rules.fetch > 0 {
		limit *= 2
	}
	for i, h := range w.m.held {
		if i > 0 && !w.m.held[i-1].event.Before(h.event.Position) {
			mo.fail(w, "held out of order")
		}
		if !h.fetched {
			own++
			if p := h.event.Position; !w.held.has(p) && !w.done.has(p) {
				mo.fail(w, "%v is held, and was never offered", h.event.Position)
			}
		}
	}
	if len(w.m.held) > limit || own < int(w.held.size()) {
		mo.fail(w, "%d held, %d of them given, %d of those not settled", len(w.m.held), own, w.held.size())
	}
}

// ends checks that the machine ends without further events: it holds nothing forever, unless it is
// halted.
func (mo *model) ends(w world) {
	if mo.rules.halt {
		return
	}
	w.faults, w.wanted = 0, nil
	for range 12 * (len(mo.events) + 1) {
		if len(w.m.held) == 0 {
			return
		}
		due := w.m.due()
		if due.IsZero() {
			mo.fail(&w, "events are held, and no time is set")
		}
		for w.now++; w.time().Before(due); {
			w.now++
		}
		for in := (input{kind: tick}); ; in = mo.store(&w, *w.m.doing) {
			for _, e := range w.m.Step(w.time(), in) {
				mo.judge(&w, e, in)
			}
			if w.m.doing == nil {
				break
			}
		}
	}
	mo.fail(&w, "events are held for ever")
}

func positions(epoch, n int64) (all []Position) {
	for seq := int64(1); seq <= n; seq++ {
		all = append(all, Position{epoch, seq})
	}
	return all
}

// TestMachineExhaustively explores the machine with each policy.
func TestMachineExhaustively(t *testing.T) {
	t.Parallel()
	base := rules{wait: unit, limit: 64, backoff: func(int) time.Duration { return unit }}
	for _, c := range []struct {
		name   string
		change func(*rules)
		events []Position
		faults int
	}{
		{"seven events", func(*rules) {}, positions(0, 7), 1},
		{"five events, two faults", func(r *rules) { r.wait = 2 * unit }, positions(0, 5), 2},
		{"two epochs", func(*rules) {}, slices.Concat(positions(1, 3), positions(2, 3)), 1},
		{"three epochs", func(*rules) {}, slices.Concat(positions(0, 2), positions(3, 2), positions(4, 2)), 0},
		{"little room", func(r *rules) { r.limit = 2 }, positions(0, 6), 1},
		{"halt", func(r *rules) { r.halt = true }, positions(0, 5), 1},
		{"halt, two epochs", func(r *rules) { r.halt = true }, slices.Concat(positions(0, 3), positions(1, 3)), 0},
		{"a source", func(r *rules) { r.fetch = unit }, positions(0, 5), 1},
		{"a source, little room, two epochs", func(r *rules) { r.fetch, r.limit = unit, 2 }, slices.Concat(positions(0, 3), positions(1, 2)), 0},
		{"a source, halt", func(r *rules) { r.fetch, r.halt = unit, true }, positions(0, 5), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := base
			c.change(&r)
			mo := &model{t: t, name: c.name, rules: r, events: c.events, faults: c.faults}
			if testbed.Brief() { // there is one goroutine, which the race detector slows down tenfold
				mo.faults, mo.events = min(1, c.faults), c.events[:min(6, len(c.events))]
			}
			begun := time.Now()
			n := mo.explore()
			t.Logf("%d states in %v", n, time.Since(begun))
			if n < 100 {
				t.Errorf("only %d states: the exploration is broken", n)
			}
		})
	}
}
