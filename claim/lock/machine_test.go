package lock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// The tests below walk through every order of events of a small world: three goroutines
// that want one name, a backend that may answer anything, and a clock of few ticks.

const (
	tick     = time.Second
	leaseFor = 3 * tick
)

// bounds of one walk.
type bounds struct {
	options   Options
	callers   int
	ticks     int
	failures  int // refusals of the backend and losses of grants
	renewals  int
	mayTry    bool
	mayRenew  bool // by hand
	mayExtend bool
}

type world struct {
	bounds
	m       machine
	g       *gate
	now     boottime.Instant
	tokens  int64
	people  []*person
	joined  int
	attempt *place // under way
	stopped bool
	closed  bool
	expires map[*place]boottime.Instant
	granted map[*place]boottime.Instant
	debts   map[*place]bool // may be left in the backend
	armed   map[*hold]boottime.Instant
	free    map[*hold]boottime.Instant // when the name of an expired claim may be given up
	lost    map[*hold]bool             // reported by the driver, or found by a renewal
	last    interlock.Token
	event   choice // under way
	err     error
}

type person struct {
	w       *waiter
	gate    *gate
	h       *hold
	done    bool
	leaving bool // its release is under way
}

// A choice is an event that may come next, in any world of the same state.
type choice struct {
	name string
	who  int // of the goroutines
	do   func(w *world, who int)
}

func (c choice) String() string { return fmt.Sprint(c.name, " ", c.who) }

func newWorld(b bounds) *world {
	w := &world{bounds: b, now: 1000, expires: map[*place]boottime.Instant{}, granted: map[*place]boottime.Instant{}, debts: map[*place]bool{},
		armed: map[*hold]boottime.Instant{}, free: map[*hold]boottime.Instant{}, lost: map[*hold]bool{}}
	w.m = machine{options: b.options, gates: map[string]*gate{}}
	for range b.callers {
		w.people = append(w.people, &person{})
	}
	return w
}

func (w *world) read(p *place) reading {
	return reading{w.now, w.expires[p].Sub(w.now)}
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %v: %w", w.event, fmt.Errorf(format, args...))
	}
}

func (w *world) live() *hold {
	for _, p := range w.people {
		if p.h != nil && p.h.ended == nil {
			return p.h
		}
	}
	return nil
}

// choices are the events that may come next.
func (w *world) choices() (cs []choice) {
	add := func(name string, who int, do func(*world, int)) { cs = append(cs, choice{name, who, do}) }
	if w.joined < len(w.people) && !w.closed {
		add("wait", w.joined, func(w *world, _ int) { w.join(false) })
		if w.mayTry {
			add("try", w.joined, func(w *world, _ int) { w.join(true) })
			if w.joined == 0 {
				add("one of several names", 0, func(w *world, _ int) { w.reserve() })
			}
		}
	}
	for i, p := range w.people {
		switch {
		case p.w != nil && p.h == nil && !p.done:
			add("leave", i, func(w *world, i int) { w.people[i].done = !w.people[i].gate.leave(w.people[i].w) })
		case p.h != nil && !p.h.releasing:
			add("release", i, func(w *world, i int) { w.release(w.people[i]) })
			if p.h.ended == nil {
				w.holderChoices(i, add)
			}
		case p.leaving:
			add("gone", i, func(w *world, i int) { w.people[i].leaving = false; w.people[i].gate.gone() })
		}
		if p.h != nil && w.armed[p.h] != 0 && w.armed[p.h] <= w.now {
			add("wake", i, func(w *world, i int) { w.wake(w.people[i].h) })
		}
	}
	if w.attempt != nil {
		w.answers(add)
	}
	if w.ticks > 0 && w.g != nil && (w.live() != nil || len(w.free) > 0) {
		add("tick", 0, func(w *world, _ int) { w.ticks--; w.now = w.now.Add(tick) })
	}
	if !w.closed && w.joined > 1 {
		add("close", 0, func(w *world, _ int) {
			w.closed = true
			w.m.close(func(string) error { return interlock.ErrClosed })
		})
	}
	return cs
}

func (w *world) join(try bool) {
	p := w.people[w.joined]
	w.joined++
	p.w = &waiter{try: try}
	p.gate = w.m.join("name", p.w)
	w.g = p.gate
}

// reserve is what a call for several names does at the gate of each.
func (w *world) reserve() {
	p := w.people[0]
	w.joined++
	p.w = &waiter{try: true}
	p.gate, w.attempt = w.m.reserve("name", p.w)
	w.g = p.gate
}

func (w *world) holderChoices(i int, add func(string, int, func(*world, int))) {
	if w.failures > 0 {
		add("lost", i, func(w *world, i int) {
			h := w.people[i].h
			w.failures--
			w.lost[h] = true
			h.gate.lost(h.place, interlock.ErrLost)
		})
	}
	if w.renewals > 0 {
		add("driver renews", i, func(w *world, i int) {
			w.renewals--
			w.expires[w.people[i].h.place] = w.now.Add(leaseFor)
		})
	}
	if w.mayExtend {
		add("extend", i, func(w *world, i int) { w.mayExtend = false; w.extend(w.people[i].h) })
	}
	if w.mayRenew {
		add("renewed", i, func(w *world, i int) { w.mayRenew = false; w.renew(w.people[i].h, false) })
		add("renewed by another grant", i, func(w *world, i int) { w.mayRenew = false; w.renew(w.people[i].h, true) })
	}
}

func (w *world) extend(h *hold) {
	over := h.left(w.read(h.place)) <= 0
	if h.gate.extend(h, 2*tick, w.read(h.place)) == over {
		w.fail("extended %v although over %v", !over, over)
	}
}

func (w *world) renew(h *hold, another bool) {
	over := h.left(w.read(h.place)) <= 0
	w.lost[h] = another
	if h.gate.renewed(h, another, nil, w.read(h.place)) == (over || another) {
		w.fail("renewed %v, over %v, another grant %v", h.ended == nil, over, another)
	}
}

// answers are what the backend may answer to the attempt.
func (w *world) answers(add func(string, int, func(*world, int))) {
	finish := func(failures int, do func(*world, *place)) func(*world, int) {
		return func(w *world, _ int) {
			p := w.attempt
			w.attempt, w.stopped = nil, false
			w.failures -= failures
			do(w, p)
		}
	}
	refused := func(failures int, err error) func(*world, int) {
		return finish(failures, func(w *world, p *place) {
			if !errors.Is(err, interlock.ErrHeld) && !errors.Is(err, driver.ErrNotInOneStep) {
				w.debts[p] = true
			}
			w.g.refused(p, err)
		})
	}
	add("grant", 0, finish(0, (*world).grant))
	if w.stopped {
		add("stopped", 0, refused(0, errNobodyWaits))
	}
	if w.failures == 0 {
		return
	}
	add("lost, then granted", 0, finish(1, func(w *world, p *place) {
		w.g.lost(p, interlock.ErrLost)
		w.grant(p)
	}))
	add("unreachable", 0, refused(1, &interlock.Error{Kind: interlock.Retryable, Err: errors.New("down")}))
	if w.attempt.only != nil {
		add("not in one step", 0, refused(1, &interlock.Error{Kind: interlock.Definite, Err: driver.ErrNotInOneStep}))
	}
	if w.attempt.noWait {
		add("held", 0, refused(1, interlock.ErrHeld))
		add("no answer, then held", 0, finish(1, func(w *world, p *place) {
			p.failure(&interlock.Error{Kind: interlock.Uncertain, Err: errors.New("lost reply")})
			w.debts[p] = true
			w.g.refused(p, interlock.ErrHeld)
		}))
	}
}

func (w *world) grant(p *place) {
	w.tokens++
	token, _ := interlock.NewToken(w.tokens, 0)
	w.expires[p], w.debts[p] = w.now.Add(leaseFor), true
	w.granted[p] = w.now
	w.g.granted(p, token, w.read(p))
}

func (w *world) release(p *person) {
	over := p.h.ended != nil || p.h.left(w.read(p.h.place)) <= 0
	next, leave := p.gate.release(p.h, w.read(p.h.place))
	if over && (next != nil || leave || p.h.ended == interlock.ErrReleased) {
		w.fail("an ended claim was released as if it was held")
	}
	if !over && (next != nil) == leave {
		w.fail("the lock is passed on %v and released %v", next != nil, leave)
	}
	if leave {
		p.leaving = true
		delete(w.debts, p.h.place)
	}
	p.done = true
}

func (w *world) wake(h *hold) {
	delete(w.armed, h)
	h.gate.woken(h, w.read(h.place))
	if h.ended == nil && h.left(w.read(h.place)) <= 0 {
		w.fail("an expired claim was not ended")
	}
}

// step runs an event, then its effects.
func (w *world) step(c choice) {
	w.event = c
	before := w.live()
	c.do(w, c.who)
	effects := slices.Clone(w.m.effects)
	w.m.effects = w.m.effects[:0]
	for _, e := range effects {
		w.run(e, before)
	}
}

func (w *world) run(e effect, before *hold) {
	switch e.do {
	case ask:
		if w.attempt != nil || w.live() != nil || e.gate.leaving || w.closed {
			w.fail("asked beside another place of ours, or after close")
		}
		w.attempt, w.stopped = e.place, false
	case stop:
		if w.attempt != e.place || e.place.only == nil && len(e.gate.waiters) > 0 {
			w.fail("an attempt was stopped that is not under way, or that others wait for")
		}
		w.stopped = true
	case giveUp:
		if h := w.live(); h != nil && h.place == e.place {
			w.fail("the place of a live claim was given up")
		}
		delete(w.debts, e.place)
		for h, at := range w.free {
			if h.place == e.place && !h.releasing && w.now < at {
				w.fail("the name of running work was given up before its lease ran out")
			}
		}
	case answer:
		w.answered(e, before)
	case end:
		w.ended(e)
	case wake:
		if e.after <= 0 {
			w.fail("a wake-up after %v", e.after)
		}
		w.armed[e.hold] = w.now.Add(e.after)
	case warn:
		if w.options.MaxHold == 0 {
			w.fail("a warning without a limit")
		}
	}
}

func (w *world) answered(e effect, before *hold) {
	i := slices.IndexFunc(w.people, func(p *person) bool { return p.w == e.waiter })
	p := w.people[i]
	if p.done || p.h != nil {
		w.fail("a goroutine was answered twice, or after it had left")
	}
	if e.hold == nil {
		p.done = true
		if !p.w.try && errors.Is(e.err, interlock.ErrHeld) {
			w.fail("a goroutine that waits was answered that the name is held")
		}
		if errors.Is(e.err, errNobodyWaits) || oneByOne(e.err) && p != w.people[0] {
			w.fail("goroutine %d was answered what does not concern it: %v", i, e.err)
		}
		return
	}
	for j, other := range w.people[:i] {
		if other.w != nil && other.h == nil && !other.done {
			w.fail("goroutine %d overtook %d", i, j)
		}
	}
	if w.live() != nil {
		w.fail("two claims at a time")
	}
	p.h = e.hold
	if e.hold.since != w.now {
		w.fail("the time of a claim begins at %v, now is %v", e.hold.since, w.now)
	}
	if e.hold.token <= w.last {
		w.fail("token %d after %d", e.hold.token, w.last)
	}
	w.last = e.hold.token
	w.armed[e.hold] = w.now.Add(e.after)
	left := w.read(e.hold.place).lease - w.options.LockDelay
	if passed := before != nil && before.place == e.hold.place; passed && left <= cmp.Or(w.options.MinValidity, leaseFor/4) {
		w.fail("a lease of %v was passed on", left)
	}
	if turn := w.options.Turn; turn > 0 && e.hold.place.passes > 0 && w.now.Sub(w.granted[e.hold.place]) >= turn {
		w.fail("the lock is passed on after its turn")
	}
	if e.hold.place.passes > max(0, w.options.Handovers) {
		w.fail("the lock was passed on %d times", e.hold.place.passes)
	}
}

func (w *world) ended(e effect) {
	h, r := e.hold, w.read(e.hold.place)
	leaseOver := r.lease <= w.options.LockDelay
	held := h.most > 0 && w.now.Sub(h.since) >= h.most
	switch {
	case errors.Is(e.err, interlock.ErrExpired):
		if !leaseOver && !held {
			w.fail("expired with a lease of %v", r.lease)
		}
		w.free[h] = w.now.Add(max(r.lease, 0))
	case errors.Is(e.err, interlock.ErrLost):
		if !w.lost[h] {
			w.fail("lost, but nobody reported that")
		}
	case leaseOver || held:
		w.fail("ended with %v although it had expired", e.err)
	}
}

// check finds what does not hold between two events.
func (w *world) check() {
	if w.g == nil {
		return
	}
	g := w.g
	var waiting []*waiter
	for _, p := range w.people {
		if p.w != nil && p.h == nil && !p.done {
			waiting = append(waiting, p.w)
		}
	}
	live := w.live()
	switch {
	case !slices.Equal(waiting, g.waiters):
		w.fail("%d wait, %d are in the queue", len(waiting), len(g.waiters))
	case len(waiting) > 0 && g.place == nil && !g.leaving:
		w.fail("nobody asks for those who wait")
	case g.holder != live:
		w.fail("the gate has another holder than the world")
	case g.place != nil && (w.attempt == g.place) == (live != nil):
		w.fail("a place without an attempt or a claim, or with both")
	case g.place == nil && (w.attempt != nil || live != nil):
		w.fail("an attempt or a claim without a place")
	case live != nil && w.armed[live] == 0:
		w.fail("nobody looks at the claim")
	case (w.m.gates["name"] == g) != (g.place != nil || g.leaving || len(g.waiters) > 0):
		w.fail("the gate is kept %v", w.m.gates["name"] == g)
	}
	idle := w.attempt == nil && live == nil
	for _, p := range w.people {
		idle = idle && (p.w == nil || p.done) && !p.leaving
	}
	if idle && len(w.debts) > 0 {
		w.fail("%d places are left in the backend", len(w.debts))
	}
}

// key is equal for worlds that behave the same from now on.
func (w *world) key() string {
	b := make([]byte, 0, 128)
	num := func(ns ...int) {
		for _, n := range ns {
			b = append(b, byte(n))
		}
	}
	flag := func(fs ...bool) {
		for _, f := range fs {
			if f {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		}
	}
	since := func(t boottime.Instant) int { return int(t.Sub(w.now) / (tick / 4)) }
	ofPlace := func(p *place) {
		flag(p.noWait, p.only != nil, p.abandoned, p.lost != nil, p.uncertain, w.debts[p])
		num(p.passes, max(since(w.expires[p]), -8))
		if w.options.Turn > 0 {
			num(max(since(w.granted[p]), -8))
		}
	}
	num(w.joined, w.ticks, w.failures, w.renewals)
	flag(w.mayRenew, w.mayExtend, w.closed, w.attempt != nil, w.stopped)
	if w.attempt != nil {
		ofPlace(w.attempt)
	}
	for _, p := range w.people {
		flag(p.w != nil, p.w != nil && p.w.try, p.done, p.leaving, p.h != nil)
		if h := p.h; h != nil {
			flag(h.ended == nil, h.releasing, h.warned, w.armed[h] == 0)
			num(since(h.since), int(h.most/tick), since(w.armed[h]), since(h.lapses), int(h.token.Sub()))
			ofPlace(h.place)
		}
	}
	return string(b)
}

// walk goes through every order of events and returns how many states there are.
func walk(t *testing.T, b bounds) int {
	seen := map[string]bool{}
	paths := [][]choice{nil}
	for len(paths) > 0 {
		path := paths[len(paths)-1]
		paths = paths[:len(paths)-1]
		w := newWorld(b)
		for _, c := range path {
			w.step(c)
		}
		if w.check(); w.err != nil {
			t.Fatalf("%v\n%v", w.err, path)
		}
		if key := w.key(); !seen[key] {
			seen[key] = true
			for _, c := range w.choices() {
				paths = append(paths, append(slices.Clip(path), c))
			}
		}
	}
	return len(seen)
}

func TestEveryOrderOfEvents(t *testing.T) {
	for name, b := range map[string]bounds{
		"queue": {callers: 3, failures: 1, mayTry: true, options: Options{Handovers: 1}},
		"clock": {callers: 2, ticks: 4, renewals: 1, options: Options{Handovers: 1, MinValidity: tick}},
		"turns": {callers: 3, ticks: 3, options: Options{Handovers: 2, Turn: 2 * tick}},
		"limits": {callers: 2, ticks: 3, renewals: 1, mayExtend: true,
			options: Options{Handovers: 1, LockDelay: tick, MaxHold: tick}},
		"by hand": {callers: 2, ticks: 3, failures: 1, mayRenew: true, options: Options{Handovers: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("%d states", walk(t, b))
		})
	}
}

// TestShortGrantIsPassedOn gives a short lease, as Redis does until a pushed grant is confirmed.
func TestShortGrantIsPassedOn(t *testing.T) {
	for left, want := range map[time.Duration]bool{4 * tick: true, tick + 1: true, tick: false} {
		w := newWorld(bounds{callers: 2, options: Options{Handovers: 1}})
		w.step(choice{do: func(w *world, _ int) { w.join(false) }})
		w.step(choice{do: func(w *world, _ int) { w.join(false) }})
		token, _ := interlock.NewToken(1, 0)
		w.g.granted(w.attempt, token, reading{w.now, 4 * tick})
		if next, _ := w.g.release(w.g.holder, reading{w.now, left}); (next != nil) != want {
			t.Errorf("with %v left of %v it is passed on: %v", left, 4*tick, next != nil)
		}
	}
}
