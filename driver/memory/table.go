package memory

import (
	"slices"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// table is the lock protocol as a pure state machine. It has one FIFO queue per name whose head is
// the holder, contenders that expire unless they are renewed, and one counter. It reads no clock
// and performs no I/O: every method takes the time and returns the effects.
type table struct {
	counter int64 // the last one issued
	names   map[string][]*contender
	touched map[string]bool // names whose holder or waiters changed, until the caller clears it
}

// contender is the holder (at the head of its queue, with a counter) or a
// waiter.
type contender struct {
	name, owner string
	counter     int64            // issued when it became the holder; 0 while it waits
	expires     boottime.Instant // unless renewed
	since       boottime.Instant // of its grant; while it waits, of its arrival
	alone       [1]*contender    // storage of a queue of one
}

// granted is the effect of a step: this contender became the holder.
type granted struct{ name, owner string }

func newTable(floor int64) *table {
	return &table{counter: floor, names: make(map[string][]*contender), touched: make(map[string]bool)}
}

// arrive adds owner at the end of the queue of name, unless it is in it, and keeps
// it alive until expires.
func (t *table) arrive(now boottime.Instant, name, owner string, expires boottime.Instant) (*contender, []granted) {
	effects := t.expire(now)
	c := t.find(name, owner)
	if c == nil {
		c = &contender{name: name, owner: owner, since: now}
		queue := t.names[name]
		if len(queue) == 0 {
			queue = c.alone[:0]
		}
		t.names[name] = append(queue, c)
		t.touched[name] = true
	}
	c.expires = expires
	return c, append(effects, t.promote(now, name)...)
}

// claimant is a contender for a name.
type claimant struct{ name, owner string }

// arriveAll makes each of wanted the holder of its name, and keeps it alive until
// expires. If another owner is at the head of one of the queues, it removes all of
// wanted instead, and returns that owner.
func (t *table) arriveAll(now boottime.Instant, wanted []claimant, expires boottime.Instant) (counters []int64, barrier *contender, effects []granted) {
	effects = t.expire(now)
	for _, w := range wanted {
		if queue := t.names[w.name]; len(queue) > 0 && queue[0].owner != w.owner {
			barrier = queue[0]
			break
		}
	}
	for _, w := range wanted {
		if barrier != nil {
			effects = append(effects, t.leave(now, w.name, w.owner)...)
			continue
		}
		c, more := t.arrive(now, w.name, w.owner, expires)
		counters, effects = append(counters, c.counter), append(effects, more...)
	}
	return counters, barrier, effects
}

// renew extends owner's lease to expires. It returns nil if owner is not in the queue: an expired
// contender cannot renew.
func (t *table) renew(now boottime.Instant, name, owner string, expires boottime.Instant) (*contender, []granted) {
	effects := t.expire(now)
	c := t.find(name, owner)
	if c != nil {
		c.expires = expires
	}
	return c, effects
}

// leave removes owner, whether it holds, waits or neither.
func (t *table) leave(now boottime.Instant, name, owner string) []granted {
	effects := t.expire(now)
	t.remove(name, func(c *contender) bool { return c.owner == owner })
	return append(effects, t.promote(now, name)...)
}

// revoke removes the holder, like an operator.
func (t *table) revoke(now boottime.Instant, name string) []granted {
	effects := t.expire(now)
	t.remove(name, func(c *contender) bool { return c.counter > 0 })
	return append(effects, t.promote(now, name)...)
}

// breakHold removes owner if it holds name, and returns the counter of its grant; 0
// if it does not hold.
func (t *table) breakHold(now boottime.Instant, name, owner string) (counter int64, effects []granted) {
	effects = t.expire(now)
	if c := t.find(name, owner); c != nil {
		counter = c.counter
	}
	if counter == 0 {
		return 0, effects
	}
	return counter, append(effects, t.leave(now, name, owner)...)
}

// expire removes all expired contenders.
func (t *table) expire(now boottime.Instant) []granted {
	var effects []granted
	for name := range t.names {
		t.remove(name, func(c *contender) bool { return c.expires <= now })
		effects = append(effects, t.promote(now, name)...)
	}
	return effects
}

// next returns the earliest expiry; ok is false without contenders.
func (t *table) next() (at boottime.Instant, ok bool) {
	for _, queue := range t.names {
		for _, c := range queue {
			if !ok || c.expires < at {
				at, ok = c.expires, true
			}
		}
	}
	return at, ok
}

// promote makes the head of the queue the holder, if it is not, and then issues its
// counter.
func (t *table) promote(now boottime.Instant, name string) []granted {
	queue := t.names[name]
	if len(queue) == 0 || queue[0].counter > 0 {
		return nil
	}
	t.counter++
	queue[0].counter = t.counter
	queue[0].since = now
	t.touched[name] = true
	return []granted{{name, queue[0].owner}}
}

func (t *table) find(name, owner string) *contender {
	for _, c := range t.names[name] {
		if c.owner == owner {
			return c
		}
	}
	return nil
}

func (t *table) ahead(c *contender) int {
	return slices.Index(t.names[c.name], c) - 1
}

func (t *table) remove(name string, gone func(*contender) bool) {
	before := len(t.names[name])
	queue := slices.DeleteFunc(t.names[name], gone)
	if len(queue) != before {
		t.touched[name] = true
	}
	if len(queue) == 0 {
		delete(t.names, name)
		return
	}
	t.names[name] = queue
}
