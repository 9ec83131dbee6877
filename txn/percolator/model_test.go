package percolator

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
)

// The explorer visits every order of the steps of a few transactions on three keys. Each
// step is atomic on one record. To cover every crash, a transaction may stop forever in
// every state. To cover every clock, any lock may count as expired at any time. A prewrite
// may arrive after its client gave up.
//
// The explorer checks each state, and the state after all clients crash and recovery runs.

const keys = 3

// A program is a transaction: it reads, then writes; writes[0] is its primary.
type program struct {
	reads, writes []int
	serializable  bool
	onePhase      bool // it leads the oracle, and first tries to write its keys without locks
	unchecked     bool // that write takes place even if another process leads the oracle
}

// phases of a client.
const (
	idle = iota
	reading
	writing
	deciding // all prewrites were answered, and it has a commit timestamp
	won      // the caller knows that it is committed
	lost     // the caller knows that it is rolled back
	unsure   // the caller cannot know: its commit may have been collected
)

// client is the state of one transaction's client.
type client struct {
	phase         int
	start, commit Timestamp
	next          int        // read or validation to do
	saw           [keys]int  // 1 + commit timestamp of the version that was read
	sent          [keys]bool // prewrites that the client or the network has delivered
	cleaned       [keys]bool
	meets         Timestamp // start of the lock that it resolves
	meetsAt       int       // key of that lock
	fate          outcome   // of that transaction, once known
	fateAt        Timestamp
	passed        [keys]Timestamp // transactions that commit above its snapshot
	write         int             // in one phase
	leader        int             // of the oracle, as it was before that write
}

// states of a write in one phase.
const (
	unsent = iota
	pending
	arrived // without an answer
	refused
)

type state struct {
	clock   Timestamp
	leader  int // of the oracle, by number
	records [keys]record
	clients [3]client
	decided [3]Timestamp // ghost: the commit timestamp that the primary recorded
	safe    Timestamp    // of the collection; 0 before it
	swept   int          // keys resolved, then keys collected
}

type explorer struct {
	programs []program
	collects bool
	seen     map[[16]byte]bool
	stack    []state
	commits  int
	wrong    error // the first property that does not hold
}

func name(k int) string    { return string(rune('a' + k)) }
func index(key string) int { return int(key[0] - 'a') }

func (x *explorer) lockOf(i, k int, c client) lock {
	return lock{Start: c.start, Primary: name(x.programs[i].writes[0]), Kind: put, Value: []byte{byte(i)}, Expires: 1}
}

// explore visits all states until a property does not hold, and returns their number.
func explore(collects bool, programs ...program) (int, error) {
	x := &explorer{programs: programs, collects: collects, seen: map[[16]byte]bool{}}
	x.push(state{clock: 1})
	for len(x.stack) > 0 && x.wrong == nil {
		s := x.stack[len(x.stack)-1]
		x.stack = x.stack[:len(x.stack)-1]
		for i := range programs {
			x.client(s, i)
		}
		if collects {
			x.collect(s)
		}
	}
	if x.wrong == nil && x.commits == 0 {
		x.wrong = errors.New("no transaction ever committed")
	}
	return len(x.seen), x.wrong
}

// push visits s if it is new, and checks each state once. The knowledge of an ended client
// does not distinguish states.
func (x *explorer) push(s state) {
	for i := range s.clients {
		if c := &s.clients[i]; c.phase >= won {
			c.commit, c.next, c.meets, c.meetsAt, c.fate, c.fateAt, c.passed = 0, 0, 0, 0, done, 0, [keys]Timestamp{}
			c.write, c.leader = 0, 0
		}
	}
	id := s.id()
	if x.seen[id] {
		return
	}
	x.seen[id] = true
	if err := x.judge(s); err != nil && x.wrong == nil {
		x.wrong = fmt.Errorf("after %d states: %w\n%+v", len(x.seen), err, s)
	}
	x.stack = append(x.stack, s)
}

func (s *state) id() [16]byte {
	var b []byte
	num := func(ns ...int) {
		for _, n := range ns {
			b = binary.AppendVarint(b, int64(n))
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
	num(int(s.clock), s.leader, int(s.safe), s.swept)
	for i := range s.records {
		r := &s.records[i]
		num(int(r.Safe), len(r.Writes), len(r.Aborted))
		flag(r.Lock != nil)
		if l := r.Lock; l != nil {
			num(int(l.Start), index(l.Primary), int(l.MinCommit))
		}
		for _, w := range r.Writes {
			num(int(w.Commit), int(w.Start), int(w.Kind))
		}
		for _, a := range r.Aborted {
			num(int(a))
		}
	}
	for i := range s.clients {
		c := &s.clients[i]
		num(c.phase, int(c.start), int(c.commit), c.next, int(c.meets), c.meetsAt, int(c.fate), int(c.fateAt), c.write, c.leader, int(s.decided[i]))
		num(c.saw[:]...)
		flag(c.sent[:]...)
		flag(c.cleaned[:]...)
		num(int(c.passed[0]), int(c.passed[1]), int(c.passed[2]))
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// passes returns the set of transactions that a client reads past.
func (c client) passes() map[Timestamp]bool {
	m := map[Timestamp]bool{}
	for _, p := range c.passed {
		m[p] = true
	}
	return m
}

// client pushes every state to which one step of client i leads.
func (x *explorer) client(s state, i int) {
	p, c := x.programs[i], s.clients[i]
	to := func(edit func(n *state, c *client)) {
		n := s
		edit(&n, &n.clients[i])
		x.push(n)
	}
	switch c.phase {
	case idle:
		to(func(n *state, c *client) { c.start, c.phase = n.issue(), reading })
	case reading:
		switch {
		case c.meets > 0:
			x.resolve(s, i)
		case c.next == len(p.reads):
			if len(p.writes) > 0 {
				to(func(_ *state, c *client) { c.phase, c.next = writing, 0 })
			}
		default:
			k := p.reads[c.next]
			a := read(s.records[k], c.start, c.passes())
			to(func(_ *state, c *client) { x.met(c, k, a, func() { c.saw[k] = 1 + int(a.at); c.next++ }) })
		}
	case writing:
		if p.onePhase && c.write != refused {
			x.writeAtOnce(s, i)
		} else {
			x.write(s, i)
		}
	case deciding:
		x.decide(s, i)
	case won, lost:
		x.finish(s, i)
	}
}

// met continues a client after a read, or begins to resolve the lock that blocks it.
func (x *explorer) met(c *client, k int, a answer, goOn func()) {
	switch a.outcome {
	case done:
		goOn()
	case locked:
		c.meets, c.meetsAt = a.lock.Start, k
	default:
		c.phase = lost
	}
}

// resolve finds the fate of the blocking transaction, and then applies it to the key, for
// both an expired and an unexpired lock.
func (x *explorer) resolve(s state, i int) {
	c := s.clients[i]
	k := c.meetsAt
	if c.fate != done { // it is known
		n := s
		nc := &n.clients[i]
		if c.fate == committed {
			n.records[k], _ = commit(n.records[k], name(k), c.meets, c.fateAt)
		} else {
			n.records[k], _ = rollback(n.records[k], c.meets)
		}
		nc.meets, nc.fate, nc.fateAt = 0, done, 0
		x.push(n)
		return
	}
	l := lock{Start: c.meets, Primary: name(x.programs[x.by(s, c.meets)].writes[0]), Expires: 1}
	snapshot := c.start
	yields := c.phase == deciding && c.meets < c.start // if both validate, the older one wins
	switch {
	case yields:
		snapshot = 0
	case c.phase == deciding:
		snapshot = c.commit
	case c.phase == writing:
		snapshot = 0
	}
	for _, now := range []Timestamp{0, math.MaxInt64} {
		n := s
		nc := &n.clients[i]
		primary := index(l.Primary)
		r, a := check(n.records[primary], l.Primary, question{lock: &l, now: now, push: snapshot})
		n.records[primary] = r
		switch a.outcome {
		case committed, aborted:
			nc.fate, nc.fateAt = a.outcome, a.at
		case alive:
			switch {
			case yields:
				nc.phase = lost
			case c.phase == writing: // it waits: here, it reads again
				nc.meets = 0
			default:
				nc.passed[x.by(s, c.meets)], nc.meets = c.meets, 0
			}
		case missing:
			nc.meets = 0
		}
		x.push(n)
	}
}

// by returns the index of the transaction that began at start.
func (x *explorer) by(s state, start Timestamp) int {
	return slices.IndexFunc(s.clients[:], func(c client) bool { return c.start == start })
}

func (x *explorer) write(s state, i int) {
	p, c := x.programs[i], s.clients[i]
	if c.meets > 0 {
		x.resolve(s, i)
		return
	}
	n := s // it gives up: its caller's context has ended
	n.clients[i].phase = lost
	x.push(n)
	left := false
	for _, k := range p.writes {
		if c.sent[k] {
			continue
		}
		left = true
		n := s
		nc := &n.clients[i]
		r, a := prewrite(n.records[k], x.lockOf(i, k, c))
		n.records[k] = r
		switch a.outcome {
		case done:
			nc.sent[k] = true
		case locked:
			nc.meets, nc.meetsAt = a.lock.Start, k
		default:
			nc.phase = lost
		}
		x.push(n)
	}
	if !left {
		n := s
		nc := &n.clients[i]
		nc.commit, nc.phase, nc.passed = n.issue(), deciding, [keys]Timestamp{} // passed was for its snapshot
		x.push(n)
	}
}

// issue returns a new timestamp. Leaders issue none while their own write is pending: only
// another process does, after it took over.
func (s *state) issue() Timestamp {
	for _, c := range s.clients {
		if c.write == pending && c.leader == s.leader {
			s.leader++
		}
	}
	s.clock++
	return s.clock
}

// writeAtOnce tries to commit a transaction by one write, at a timestamp that its process issues
// as the leader of the oracle. The write can arrive at any time, and its answer can be lost.
func (x *explorer) writeAtOnce(s state, i int) {
	p, c := x.programs[i], &s.clients[i]
	switch c.write {
	case unsent:
		c.commit = s.issue()
		c.write, c.leader = pending, s.leader
		x.push(s)
		return
	case pending:
		n := s
		if x.arrive(&n, i) {
			n.clients[i].write = arrived
			x.push(n)
			n.clients[i].phase = won
		} else {
			n.clients[i].write = refused
		}
		x.push(n)
	}
	s.issue() // it takes over, so that the write cannot arrive any more, and finds out
	_, a := commit(s.records[p.writes[0]], name(p.writes[0]), c.start, 0)
	switch a.outcome {
	case committed:
		c.phase = won
	case unknown:
		c.phase = unsure
	default:
		c.write, c.commit = refused, 0
	}
	x.push(s)
}

// arrive lets the write of client i take place, or returns false.
func (x *explorer) arrive(s *state, i int) bool {
	p, c := x.programs[i], s.clients[i]
	if c.leader != s.leader && !p.unchecked {
		return false
	}
	records := s.records
	for _, k := range p.writes {
		var a answer
		if records[k], a = commitAtOnce(records[k], name(k), x.lockOf(i, k, c), c.commit); a.outcome != committed {
			return false
		}
	}
	s.records, s.decided[i] = records, c.commit
	x.commits++
	return true
}

// decide validates the reads if it has to, then commits the primary.
func (x *explorer) decide(s state, i int) {
	p, c := x.programs[i], s.clients[i]
	if c.meets > 0 {
		x.resolve(s, i)
		return
	}
	n := s
	nc := &n.clients[i]
	if p.serializable && c.next < len(p.reads) {
		k := p.reads[c.next]
		a := validate(s.records[k], c.start, c.commit, c.passes())
		x.met(nc, k, a, func() { nc.next++ })
		x.push(n)
		return
	}
	k := p.writes[0]
	r, a := commit(n.records[k], name(k), c.start, c.commit)
	n.records[k] = r
	switch a.outcome {
	case committed:
		nc.phase, n.decided[i] = won, a.at
		x.commits++
		x.push(n)
		n.clients[i].phase = deciding // the answer is lost: it repeats the request
		n.clients[i].next = len(p.reads)
		x.push(n)
	case tooEarly:
		nc.commit, nc.next, nc.passed = n.issue(), 0, [keys]Timestamp{}
		x.push(n)
	case unknown:
		nc.phase = unsure
		x.push(n)
	default:
		nc.phase = lost
		x.push(n)
	}
}

// finish commits the secondaries, or cleans up. Prewrites without an answer arrive late.
func (x *explorer) finish(s state, i int) {
	p, c := x.programs[i], s.clients[i]
	for _, k := range p.writes {
		if !c.cleaned[k] {
			n := s
			n.clients[i].cleaned[k] = true
			if c.phase == won {
				n.records[k], _ = commit(n.records[k], name(k), c.start, s.decided[i])
			} else {
				n.records[k], _ = rollback(n.records[k], c.start)
			}
			x.push(n)
		}
		if !c.sent[k] && c.phase == lost {
			n := s
			n.clients[i].sent[k] = true
			n.records[k], _ = prewrite(n.records[k], x.lockOf(i, k, c))
			x.push(n)
		}
	}
}

// collect resolves the locks below the safe point key by key, and then collects each.
func (x *explorer) collect(s state) {
	n := s
	switch {
	case s.safe == 0:
		n.safe = s.clock
	case s.swept < keys:
		if l := s.records[s.swept].Lock; l != nil && l.Start < s.safe {
			settle(&n.records, s.swept)
		}
		n.swept++
	case s.swept < 2*keys:
		k := s.swept - keys
		n.records[k], _ = collect(s.records[k], s.safe)
		n.swept++
	default:
		return
	}
	x.push(n)
}

// settle resolves the lock of a key as if its owner had died.
func settle(records *[keys]record, k int) {
	l := records[k].Lock
	primary := index(l.Primary)
	r, a := check(records[primary], l.Primary, question{lock: l, now: math.MaxInt64})
	records[primary] = r
	if a.outcome == committed {
		records[k], _ = commit(records[k], name(k), l.Start, a.at)
	} else {
		records[k], _ = rollback(records[k], l.Start)
	}
}

// judge checks a state, and the state after a recovery.
func (x *explorer) judge(s state) error {
	if err := x.isolated(s); err != nil {
		return err
	}
	records := s.records
	for range 2 { // the second time, after late prewrites
		for k := range records {
			if records[k].Lock != nil {
				settle(&records, k)
			}
			if records[k].Lock != nil {
				return fmt.Errorf("key %s is still locked after recovery", name(k))
			}
		}
		if err := x.atomic(s, records); err != nil {
			return err
		}
		for i, p := range x.programs {
			for _, k := range p.writes {
				if c := s.clients[i]; c.phase >= writing {
					records[k], _ = prewrite(records[k], x.lockOf(i, k, c))
				}
			}
		}
	}
	return nil
}

// atomic checks that after recovery a transaction is committed in all of its keys or none.
func (x *explorer) atomic(s state, records [keys]record) error {
	for i, p := range x.programs {
		c := s.clients[i]
		for _, k := range p.writes {
			at := records[k].committed(c.start)
			overwritten := records[k].Safe >= s.decided[i] || records[k].Safe > c.start
			switch {
			case c.start == 0:
			case s.decided[i] == 0 && at > 0:
				return fmt.Errorf("transaction %d is committed in %s, but not in its primary", i, name(k))
			case s.decided[i] > 0 && at != s.decided[i] && !overwritten:
				return fmt.Errorf("transaction %d committed at %d, and in %s at %d", i, s.decided[i], name(k), at)
			case at > 0 && records[k].Aborted.has(c.start):
				return fmt.Errorf("transaction %d is committed and rolled back in %s", i, name(k))
			case c.phase == lost && s.decided[i] > 0:
				return fmt.Errorf("transaction %d is committed, and its caller got the opposite answer", i)
			}
		}
	}
	for k, r := range records {
		want := 0
		for i, p := range x.programs {
			if slices.Contains(p.writes, k) {
				want = max(want, int(s.decided[i]))
			}
		}
		if a := read(r, s.clock, nil); a.outcome == tooOld || int(a.at) != want {
			return fmt.Errorf("%s is read at version %d, the last committed one is %d", name(k), a.at, want)
		}
	}
	return nil
}

// isolated checks that every read saw its snapshot, and that no two writers of a key overlapped.
// Nothing that a serializable transaction read may change before it commits.
func (x *explorer) isolated(s state) error {
	for i, p := range x.programs {
		c := s.clients[i]
		for j, other := range x.programs {
			at := s.decided[j]
			if j == i || at == 0 {
				continue
			}
			for _, k := range other.writes {
				if slices.Contains(p.writes, k) && s.decided[i] > 0 && c.start < at && s.clients[j].start < s.decided[i] {
					return fmt.Errorf("transactions %d and %d overlap in %s", i, j, name(k))
				}
				saw := Timestamp(c.saw[k] - 1)
				if saw >= 0 && at <= c.start && saw < at {
					return fmt.Errorf("transaction %d read version %d of %s at %d, and not that of %d", i, saw, name(k), c.start, at)
				}
				if saw >= 0 && p.serializable && s.decided[i] > at && at > c.start {
					return fmt.Errorf("transaction %d committed at %d, although %s changed at %d after it was read", i, s.decided[i], name(k), at)
				}
			}
		}
		for k, saw := range c.saw {
			if Timestamp(saw-1) > c.start {
				return fmt.Errorf("transaction %d read version %d of %s at %d", i, saw-1, name(k), c.start)
			}
			known := saw <= 1
			for j, other := range x.programs {
				known = known || int(s.decided[j]) == saw-1 && slices.Contains(other.writes, k)
			}
			if !known {
				return fmt.Errorf("transaction %d read version %d of %s, which was never committed", i, saw-1, name(k))
			}
		}
	}
	return nil
}

func TestEveryOrder(t *testing.T) {
	const a, b, c = 0, 1, 2
	tests := []struct {
		name     string
		long     bool // half of all states: not with -short
		soak     bool // it takes a minute
		collects bool
		wrong    bool // a property does not hold
		programs []program
	}{
		{name: "two writers and a reader", programs: []program{{writes: []int{a, b}}, {writes: []int{b, c}}, {reads: []int{c, b}}}},
		{name: "lost update", programs: []program{{reads: []int{a}, writes: []int{a, b}}, {reads: []int{a}, writes: []int{b, a}}}},
		{name: "a writer, one that depends on it, and a reader", programs: []program{{writes: []int{a, b}},
			{reads: []int{b}, writes: []int{c}}, {reads: []int{c, a}}}},
		{name: "two writers and a collection", collects: true, programs: []program{{writes: []int{a, b}}, {writes: []int{b, c}}}},
		{name: "a writer, a reader and a collection", collects: true, programs: []program{{writes: []int{a, b, c}}, {reads: []int{c, a}}}},
		{name: "write skew", programs: []program{{reads: []int{a}, writes: []int{b}, serializable: true},
			{reads: []int{b}, writes: []int{a}, serializable: true}}},
		{name: "write skew of three", long: true, programs: []program{{reads: []int{a}, writes: []int{b}, serializable: true},
			{reads: []int{b}, writes: []int{c}, serializable: true}, {reads: []int{c}, writes: []int{a}, serializable: true}}},
		{name: "one phase under another leader", wrong: true, programs: []program{{writes: []int{a}, onePhase: true, unchecked: true}, {reads: []int{a}}}},
		{name: "write skew in one phase", wrong: true, programs: []program{{reads: []int{a}, writes: []int{b}, onePhase: true, serializable: true},
			{reads: []int{b}, writes: []int{a}, serializable: true}}},
		{name: "one phase, serializable", programs: []program{{reads: []int{a}, writes: []int{a}, onePhase: true, serializable: true},
			{reads: []int{a}, writes: []int{b}, serializable: true}, {reads: []int{b, a}}}},
		{name: "two in one phase", programs: []program{{reads: []int{a}, writes: []int{a, b}, onePhase: true},
			{reads: []int{b}, writes: []int{b}, onePhase: true}}},
		{name: "one phase and a collection", collects: true, programs: []program{{writes: []int{a}, onePhase: true}, {reads: []int{a}, writes: []int{b}}}},
		{name: "one phase, two, and a reader", soak: true, programs: []program{{reads: []int{b}, writes: []int{a}, onePhase: true},
			{reads: []int{a}, writes: []int{b, a}}, {reads: []int{b, a}}}},
		{name: "two in one phase, and a reader", soak: true, programs: []program{{reads: []int{a}, writes: []int{a, b}, onePhase: true},
			{reads: []int{b}, writes: []int{b}, onePhase: true}, {reads: []int{a, b}}}},
		{name: "three writers", soak: true, programs: []program{{writes: []int{a, b}}, {writes: []int{b}}, {writes: []int{c, a}}}},
		{name: "three writers in a ring", soak: true, programs: []program{{writes: []int{a, b}}, {writes: []int{b, c}}, {writes: []int{c, a}}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.soak && os.Getenv("INTERLOCK_SOAK_PERCOLATOR") == "" {
				t.Skip("INTERLOCK_SOAK_PERCOLATOR is not set")
			}
			if test.long && testing.Short() {
				t.Skip("not with -short")
			}
			states, err := explore(test.collects, test.programs...)
			if test.wrong != (err != nil) {
				t.Error(err)
			}
			t.Logf("%d states, %.90v", states, err)
		})
	}
}
