package postgres

import (
	"container/heap"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// table is what one session knows of its locks, as a pure state machine. It
// neither reads a clock nor talks to anyone: each method takes what happened
// and returns what is to be done, in order. The result is valid until the next call.
//
// A session may take a lock that it holds once more, so everything about one
// key goes through one slot: nothing is tried there while the session holds the
// key or has asked for it. Names that share a key share a slot.
//
// An event costs the same whatever the number of slots: it touches one of them, and tick
// those that are due.
type table struct {
	heartbeat  func() time.Duration // until the next try of who hears nothing
	slots      map[int64]*slot
	contenders map[identity]*contender
	waiting    agenda    // slots where a contender has to try, the earliest first
	held       int       // slots with a holder
	free       []*slot   // slots without a key, for later ones; at most mostMembers
	end, begin [1]effect // what an event ends and begins, so that most events allocate nothing
}

type identity struct{ name, owner string }

// contender is one owner that wants or has a name.
type contender struct {
	identity
	key        int64
	noWait     bool
	wanted     bool             // an Acquire waits for it, or it holds
	registered bool             // the server may have its place in the line
	refused    int              // how often, since it was asked for
	due        boottime.Instant // when to try; far away while that is useless
	counter    int64            // of its grant; 0 while there is none
}

// slot is one key. asking is whose try has not been answered; woken says that a
// wake-up came meanwhile.
type slot struct {
	key            int64
	holder, asking *contender
	woken          bool
	queue          []*contender
	due            boottime.Instant // when a contender in the queue has to try; never if none has
	place          int              // in the agenda; -1 if it is not there
}

// An effect is what is to be done for a contender.
type effect struct {
	kind   effectKind
	on     contender // as it was then
	holder string    // who holds it, for report effects; empty if not known
	since  time.Time
}

type effectKind int

const (
	sendTake effectKind = iota // a first try, which takes what is free
	sendTry
	sendRetry // a try that failed together with others
	sendRegister
	sendLeave  // leave the queue
	sendGive   // release what is held, and wake the next
	sendUnlock // release the lock and the place, if there are any, and wake the next
	sendPass   // wake the next
	reportGranted
	reportHeld
	reportWaiting
)

// outcome is the server's answer to a try: counter is 0 if another has it.
type outcome struct {
	counter int64
	holder  string
	since   time.Time
}

const never = boottime.Instant(1<<63 - 1)

func newTable(heartbeat func() time.Duration) *table {
	return &table{heartbeat: heartbeat, slots: map[int64]*slot{}, contenders: map[identity]*contender{}}
}

// ask begins or repeats a request.
func (t *table) ask(now boottime.Instant, id identity, key int64, noWait bool) []effect {
	c := t.contenders[id]
	if c == nil {
		c = &contender{identity: id, key: key}
		t.contenders[id] = c
		s := t.slot(key)
		s.queue = append(s.queue, c)
	}
	c.wanted, c.noWait, c.refused = true, noWait, 0
	if c.counter > 0 {
		return []effect{{kind: reportGranted, on: *c}}
	}
	c.due = now
	return t.advance(now, key)
}

// abandon records that the caller of c no longer waits. Its place stays until it is
// its turn, in case the request is repeated.
func (t *table) abandon(id identity) {
	if c := t.contenders[id]; c != nil && c.counter == 0 {
		c.wanted = false
	}
}

// tried takes the answer to a try.
func (t *table) tried(now boottime.Instant, id identity, key int64, o outcome) []effect {
	s := t.slot(key)
	c, woken := s.answered()
	var effects []effect
	switch {
	case c == nil || t.contenders[id] != c: // released meanwhile, which released everything
	case o.counter > 0 && !c.wanted:
		t.remove(c)
		effects = []effect{{kind: sendUnlock, on: *c}}
	case o.counter > 0:
		c.counter, c.registered = o.counter, false
		s.holder = c
		t.held++
		effects = one(&t.end, reportGranted, c)
	default:
		effects = t.refuse(now, c, o)
	}
	if woken && s.holder == nil {
		effects = append(effects, t.wake(now, key)...)
	}
	return append(effects, t.advance(now, key)...)
}

// try is the first one unless c has a place, or has been refused.
func (c *contender) try() effectKind {
	if c.registered || c.refused > 0 {
		return sendTry
	}
	return sendTake
}

// again repeats the try of id in another way, unless it was released meanwhile: after a first try
// that has not taken the lock, and after an error of a statement that it shared with others.
func (t *table) again(now boottime.Instant, id identity, key int64, kind effectKind) []effect {
	if c := t.slot(key).asking; c != nil && t.contenders[id] == c {
		return []effect{{kind: kind, on: *c}}
	}
	return t.failed(now, id, key)
}

// answered ends the try that is under way.
func (s *slot) answered() (c *contender, woken bool) {
	c, woken = s.asking, s.woken
	s.asking, s.woken = nil, false
	return c, woken
}

// refuse notes that another has it. The first refusal of one who waits is
// followed by another try: a holder that released before our place was
// visible could not wake us.
func (t *table) refuse(now boottime.Instant, c *contender, o outcome) []effect {
	if c.noWait {
		t.remove(c)
		return append(t.leave(c), effect{kind: reportHeld, on: *c, holder: o.holder, since: o.since})
	}
	c.refused++
	c.registered = true
	c.due = now.Add(t.heartbeat())
	if c.refused == 1 {
		c.due = now
	}
	if c.refused != 2 {
		return nil
	}
	return []effect{{kind: reportWaiting, on: *c, holder: o.holder}}
}

// failed takes an error of the server about a try. The lock may have been taken
// before that: a session keeps it even if its transaction failed.
func (t *table) failed(now boottime.Instant, id identity, key int64) []effect {
	s := t.slot(key)
	c, _ := s.answered() // the unlock wakes the next one
	if c == nil || t.contenders[id] != c {
		return t.advance(now, key)
	}
	t.remove(c)
	return append([]effect{{kind: sendUnlock, on: *c}}, t.advance(now, key)...)
}

// release releases whatever id has.
func (t *table) release(now boottime.Instant, id identity, key int64) []effect {
	c := t.contenders[id]
	if c == nil {
		return []effect{{kind: sendLeave, on: contender{identity: id, key: key}}}
	}
	s := t.slot(c.key)
	t.remove(c)
	kind := sendLeave
	switch {
	case s.holder == c:
		s.holder = nil
		t.held--
		kind = sendGive
		for _, w := range s.queue {
			w.due = now.Add(t.heartbeat()) // if the server does not wake them before
		}
	case s.asking == c:
		kind = sendUnlock // the try before it may have been granted
	}
	return append(one(&t.end, kind, c), t.advance(now, key)...)
}

// drop releases what owner holds, because it was taken away. There is nothing to
// do if it does not hold it.
func (t *table) drop(now boottime.Instant, key int64, owner string) []effect {
	s := t.slots[key]
	if s == nil || s.holder == nil || s.holder.owner != owner {
		return nil
	}
	return t.release(now, s.holder.identity, key)
}

// wake takes the server's word that it may be our turn.
func (t *table) wake(now boottime.Instant, key int64) []effect {
	s := t.slots[key]
	switch {
	case s == nil:
		return []effect{{kind: sendPass, on: contender{key: key}}}
	case s.holder != nil:
		return nil // its release will wake the next
	case s.asking != nil:
		s.woken = true // it may be later than the refusal that is on its way
		return nil
	}
	var effects []effect
	for _, c := range slices.Clone(s.queue) {
		if c.wanted {
			c.due = now
			return append(effects, t.advance(now, key)...)
		}
		t.remove(c)
		effects = append(effects, t.leave(c)...)
	}
	t.advance(now, key) // nobody is left
	return append(effects, effect{kind: sendPass, on: contender{key: key}})
}

// tick tries for those whose time has come.
func (t *table) tick(now boottime.Instant) []effect {
	var effects []effect
	for t.next() <= now {
		effects = append(effects, t.advance(now, t.waiting[0].key)...)
	}
	return effects
}

// next is when tick has something to do, or never.
func (t *table) next() boottime.Instant {
	if len(t.waiting) == 0 {
		return never
	}
	return t.waiting[0].due
}

// advance does for one key what is due, and notes when something will be. Every event ends
// with it.
func (t *table) advance(now boottime.Instant, key int64) []effect {
	s := t.slots[key]
	if s == nil {
		return nil
	}
	effects := t.proceed(now, s)
	t.waiting.schedule(s)
	if s.holder == nil && s.asking == nil && len(s.queue) == 0 {
		delete(t.slots, key)
		if len(t.free) < mostMembers {
			t.free = append(t.free, s)
		}
	}
	return effects
}

func (t *table) proceed(now boottime.Instant, s *slot) []effect {
	switch {
	case s.asking != nil: // one try at a time
		return nil
	case s.holder != nil && len(s.queue) == 1: // nobody but the holder
		return nil
	case s.holder != nil:
		return t.lineUp(now, s)
	}
	for _, c := range s.queue {
		if c.wanted && c.due <= now {
			s.asking = c
			return one(&t.begin, c.try(), c)
		}
	}
	return nil
}

// lineUp is for those who want what this session holds for another owner.
func (t *table) lineUp(now boottime.Instant, s *slot) []effect {
	var effects []effect
	for _, c := range slices.Clone(s.queue) {
		switch {
		case c == s.holder || !c.wanted || c.due > now:
		case c.noWait:
			t.remove(c)
			effects = append(append(effects, t.leave(c)...), effect{kind: reportHeld, on: *c, holder: s.holder.owner})
		default:
			c.due, c.registered = never, true
			effects = append(effects, effect{kind: sendRegister, on: *c},
				effect{kind: reportWaiting, on: *c, holder: s.holder.owner})
		}
	}
	return effects
}

// leave removes c from the queue, if it is there.
func (t *table) leave(c *contender) []effect {
	if !c.registered {
		return nil
	}
	return []effect{{kind: sendLeave, on: *c}}
}

func (t *table) slot(key int64) *slot {
	s := t.slots[key]
	if s != nil {
		return s
	}
	if last := len(t.free) - 1; last >= 0 {
		s, t.free = t.free[last], t.free[:last]
	} else {
		s = &slot{}
	}
	*s = slot{key: key, due: never, place: -1, queue: s.queue}
	t.slots[key] = s
	return s
}

// one returns one effect, in place of the former one.
func one(to *[1]effect, kind effectKind, on *contender) []effect {
	to[0] = effect{kind: kind, on: *on}
	return to[:]
}

func (t *table) remove(c *contender) {
	delete(t.contenders, c.identity)
	s := t.slot(c.key)
	s.queue = slices.DeleteFunc(s.queue, func(other *contender) bool { return other == c })
}

// agenda is the slots where a contender has to try, the earliest first.
type agenda []*slot

// schedule puts s where it belongs. Who asks or holds is not waited for.
func (a *agenda) schedule(s *slot) {
	s.due = never
	for _, c := range s.queue {
		if s.asking == nil && c.wanted && c.counter == 0 {
			s.due = min(s.due, c.due)
		}
	}
	switch {
	case s.due == never && s.place >= 0:
		heap.Remove(a, s.place)
	case s.due < never && s.place < 0:
		heap.Push(a, s)
	case s.due < never:
		heap.Fix(a, s.place)
	}
}

// Len, Less, Swap, Push and Pop are of heap.Interface.
func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].due < a[j].due }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}

func (a *agenda) Push(x any) {
	s := x.(*slot)
	s.place = len(*a)
	*a = append(*a, s)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	s := (*a)[last]
	s.place = -1
	(*a)[last] = nil
	*a = (*a)[:last]
	return s
}
