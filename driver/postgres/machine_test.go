package postgres

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// world is a server with some sessions that run the machine, and nothing that
// happens at once: every step executes one statement, delivers one answer or
// one notification, or has one owner do something. There are no heartbeats, so
// that a lost wake-up shows.
type world struct {
	t        *testing.T
	random   *rand.Rand
	sessions []*node
	holder   *node // who has the lock on the server
	depth    int   // how often
	place    int
	rows     []*row
	holds    map[identity]bool // who was granted, and has not released
	counter  int64
}

// node is one session: what it sent and was not executed, and what the server
// said and was not delivered.
type node struct {
	table *table
	sent  []effect
	heard []func() []effect
	wants map[identity]bool
}

type row struct {
	node  *node
	owner string
	held  bool
	place int
}

const modelKey = 7

func (w *world) pick(n *node, owner string) *row {
	for _, r := range w.rows {
		if r.node == n && r.owner == owner {
			return r
		}
	}
	return nil
}

func (w *world) drop(n *node, owner string) {
	w.rows = slices.DeleteFunc(w.rows, func(r *row) bool { return r.node == n && r.owner == owner })
}

func (w *world) note(n *node, owner string, held bool) {
	if r := w.pick(n, owner); r != nil {
		r.held = held
		return
	}
	w.place++
	w.rows = append(w.rows, &row{n, owner, held, w.place})
}

// do takes effects: sends go to the server's input, the rest is reported.
func (w *world) do(n *node, effects []effect) {
	for _, e := range effects {
		switch e.kind {
		case reportGranted:
			w.holds[e.on.identity] = true
			if len(w.holds) > 1 {
				w.t.Fatalf("%v hold at once", w.holds)
			}
		case reportHeld:
			delete(n.wants, e.on.identity)
		case reportWaiting:
		default:
			n.sent = append(n.sent, e)
		}
	}
}

// execute has the server execute the next statement of n.
func (w *world) execute(n *node) {
	e := n.sent[0]
	n.sent = n.sent[1:]
	switch e.kind {
	case sendTake:
		w.take(n, e.on)
	case sendTry, sendRetry:
		w.try(n, e.on)
	case sendRegister:
		w.note(n, e.on.owner, false)
	case sendLeave:
		w.drop(n, e.on.owner)
	case sendGive, sendUnlock:
		w.drop(n, e.on.owner)
		if w.holder == n {
			if w.depth--; w.depth == 0 {
				w.holder = nil
			}
		}
		w.pass()
	case sendPass:
		w.pass()
	}
}

// take is a first try, which leaves nothing if the lock is not free.
func (w *world) take(n *node, c contender) {
	if w.holder == nil || w.holder == n {
		w.try(n, c)
		return
	}
	n.heard = append(n.heard, func() []effect { return n.table.again(now, c.identity, c.key, sendTry) })
}

func (w *world) try(n *node, c contender) {
	o := outcome{holder: "someone"}
	if w.holder == nil || w.holder == n {
		w.holder = n
		if w.depth++; w.depth > 1 {
			w.t.Fatal("a session took the lock that it had")
		}
		w.counter++
		o = outcome{counter: w.counter}
		w.note(n, c.owner, true)
	} else if !c.noWait {
		w.note(n, c.owner, false)
	}
	n.heard = append(n.heard, func() []effect { return n.table.tried(now, c.identity, c.key, o) })
}

// pass wakes the first in line.
func (w *world) pass() {
	for _, r := range w.rows {
		if !r.held {
			r.node.heard = append(r.node.heard, func() []effect { return r.node.table.wake(now, modelKey) })
			return
		}
	}
}

const now = boottime.Instant(time.Hour)

// step does one thing that can be done, or reports that there is none. Owners
// begin only while some are left.
func (w *world) step(left *int) bool {
	var can []func()
	for _, n := range w.sessions {
		if len(n.sent) > 0 {
			can = append(can, func() { w.execute(n) })
		}
		if len(n.heard) > 0 {
			can = append(can, func() {
				next := n.heard[0]
				n.heard = n.heard[1:]
				w.do(n, next())
			})
		}
		for id := range n.wants {
			if w.holds[id] || w.random.IntN(20) == 0 {
				can = append(can, func() { w.release(n, id) })
			}
			if !w.holds[id] && w.random.IntN(20) == 0 {
				can = append(can, func() { n.table.abandon(id); w.do(n, n.table.ask(now, id, modelKey, false)) })
			}
		}
		if *left > 0 {
			can = append(can, func() { *left--; w.ask(n, *left) })
		}
	}
	if len(can) == 0 {
		return false
	}
	can[w.random.IntN(len(can))]()
	return true
}

func (w *world) ask(n *node, number int) {
	id := identity{"x", fmt.Sprint("o", number)}
	n.wants[id] = true
	w.do(n, n.table.ask(now, id, modelKey, w.random.IntN(5) == 0))
}

func (w *world) release(n *node, id identity) {
	delete(n.wants, id)
	delete(w.holds, id)
	w.do(n, n.table.release(now, id, modelKey))
}

// TestMachine: in any order of events, one session holds at a time. No session takes a lock
// twice, each is served without a heartbeat, and nothing is left.
func TestMachine(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4000) {
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), holds: map[identity]bool{}}
		for range 1 + w.random.IntN(3) {
			w.sessions = append(w.sessions, &node{table: newTable(func() time.Duration { return 10 * time.Hour }), wants: map[identity]bool{}})
		}
		left, steps := 12, 0
		for w.step(&left) {
			if steps++; steps > 100_000 {
				t.Fatalf("seed %d: it does not end", seed)
			}
		}
		w.mustBeOver(seed)
	}
}

func (w *world) mustBeOver(seed uint64) {
	w.t.Helper()
	for i, n := range w.sessions {
		if len(n.wants) > 0 || len(n.table.contenders) > 0 || len(n.table.slots) > 0 {
			w.t.Fatalf("seed %d, session %d: %v were not served, the machine keeps %d and %d", seed, i, n.wants,
				len(n.table.contenders), len(n.table.slots))
		}
	}
	if w.holder != nil || len(w.rows) > 0 {
		w.t.Fatalf("seed %d: the server keeps the lock %d times, and %d rows", seed, w.depth, len(w.rows))
	}
}

// An abandoned place is given up when its turn comes, and the next is woken.
func TestAbandonedPlacePassesItsTurnOn(t *testing.T) {
	t.Parallel()
	m := newTable(func() time.Duration { return time.Hour })
	id := identity{"x", "o"}
	m.ask(now, id, modelKey, false)
	for range 2 {
		m.tried(now, id, modelKey, outcome{holder: "someone"})
	}
	m.abandon(id)
	var kinds []effectKind
	for _, e := range m.wake(now, modelKey) {
		kinds = append(kinds, e.kind)
	}
	if !slices.Equal(kinds, []effectKind{sendLeave, sendPass}) {
		t.Errorf("effects %v", kinds)
	}
}

// The server tells a session of its turn before it says that the try was
// refused, if the lock was given up between the two.
func TestTurnThatComesDuringATryIsTaken(t *testing.T) {
	t.Parallel()
	m := newTable(func() time.Duration { return time.Hour })
	m.ask(now, identity{"x", "o"}, modelKey, false)
	m.tried(now, identity{"x", "o"}, modelKey, outcome{holder: "someone"})
	m.wake(now, modelKey)
	effects := m.tried(now, identity{"x", "o"}, modelKey, outcome{holder: "someone"})
	if len(effects) != 2 || effects[0].kind != reportWaiting || effects[1].kind != sendTry {
		t.Errorf("effects %+v", effects)
	}
	if effects = m.tried(now, identity{"x", "o"}, modelKey, outcome{holder: "someone"}); len(effects) != 0 {
		t.Errorf("without another turn: %+v", effects)
	}
}

// An event touches one slot, however many the session has: nothing that is held is looked at
// by those of others, and only what has to be tried is in the agenda.
func TestHeldLocksCostNothing(t *testing.T) {
	m := newTable(func() time.Duration { return time.Second })
	for i := range 2000 {
		id := identity{fmt.Sprint("held/", i), "o"}
		m.ask(now, id, int64(i), false)
		m.tried(now, id, int64(i), outcome{counter: 1 + int64(i)})
	}
	pair := func() {
		m.ask(now, identity{"x", "o"}, -1, false)
		m.tried(now, identity{"x", "o"}, -1, outcome{counter: 1})
		m.release(now, identity{"x", "o"}, -1)
		m.tick(now)
	}
	if m.held != 2000 || len(m.waiting) != 0 || m.next() != never {
		t.Errorf("%d held, %d to try", m.held, len(m.waiting))
	}
	if n := testing.AllocsPerRun(100, pair); n > 9 {
		t.Errorf("%v allocations for a pair, want at most 9", n)
	}
	for key := range int64(3) { // whose second try is refused waits for its time
		id := identity{fmt.Sprint("waits/", key), "o"}
		m.ask(now, id, -2-key, false)
		m.tried(now.Add(-time.Duration(key)*time.Millisecond), id, -2-key, outcome{holder: "someone"})
		m.tried(now.Add(-time.Duration(key)*time.Millisecond), id, -2-key, outcome{holder: "someone"})
	}
	if first := now.Add(998 * time.Millisecond); len(m.waiting) != 3 || m.next() != first {
		t.Errorf("%d to try, the first at %v, want 3 and %v", len(m.waiting), m.next(), first)
	}
	if tries := m.tick(now.Add(999 * time.Millisecond)); len(tries) != 2 || len(m.waiting) != 1 {
		t.Errorf("%d tries are due, want 2: %+v", len(tries), tries)
	}
}

// Calls that wait together share a transaction with those of their kind. The order of the
// calls of one key stays, and of those that are alone with all others.
func TestCallsShareTransactions(t *testing.T) {
	t.Parallel()
	kinds := map[byte]callKind{'a': callAlone, 'g': callGive, 'u': callUnlock, 't': callTake, 'y': callTry, 'r': callRetry}
	for calls, want := range map[string]string{ // the kind and the key
		"t1 t2 t3":       "t1+t2+t3",
		"t1 g2 y3 t4 u5": "g2 u5 t1+t4 y3",
		"g1 t1":          "g1 t1",
		"t1 u1":          "t1 u1",
		"t1 u1 t1":       "t1 u1 t1",
		"t1 u1 t2":       "t1 u1 t2",
		"t1 a0 t2 g3":    "t1 a0 g3 t2",
		"t1 r2 t3":       "t1 r2 t3",
		"t1 g2 t3 g4":    "g2+g4 t1+t3",
	} {
		var all []*call
		for _, c := range strings.Fields(calls) {
			all = append(all, &call{kind: kinds[c[0]], on: contender{key: int64(c[1]), identity: identity{name: c}}, members: 3})
		}
		b := batcher{keys: map[int64]callKind{}}
		got := ""
		for _, c := range b.arrange(all) {
			if c.members > 0 {
				got += " " + c.on.name
			} else {
				got += "+" + c.on.name
			}
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%s: sent as%s, want %s", calls, got, want)
		}
	}
	var many []*call
	for i := range 2*mostMembers + 1 {
		many = append(many, &call{kind: callTake, on: contender{key: int64(i)}})
	}
	b := batcher{keys: map[int64]callKind{}}
	arranged := b.arrange(many)
	if len(arranged) != len(many) || arranged[0].members != mostMembers || arranged[2*mostMembers].members != 1 {
		t.Errorf("%d calls, the first transaction has %d", len(arranged), arranged[0].members)
	}
}
