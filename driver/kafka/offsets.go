package kafka

import (
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
)

// offsets is what a consumer knows of one partition under one assignment. It is pure: it does
// no I/O, starts nothing, and receives the time.
//
// A record is pending from its arrival until it is completed, by an Ack or a Dead. The
// committed offset is that of the first pending record. Everything from there to next that is
// not pending is completed: handled, or not in the log.
//
// Records of a key form a lane. A record is waiting or delivered. After a Retry, Release or
// Park nothing of its lane is delivered until all that was delivered is settled; then the lane
// begins again with its first pending record.
type offsets struct {
	next    int64    // the offset behind the last one that was read
	pending []*entry // by offset; also some that are completed, but not the first
	done    int      // how many of these are completed
	lanes   map[string]*lane
	ready   []*entry // waiting, and to be delivered next
	paused  []*lane  // nothing of them is delivered, and they wait for their time

	delivered int
	unread    int  // pending, and not read again yet
	held      load // of what was read and is not completed
	blocked   load // of it, what waits in lanes that are blocked

	token   int64 // counter of the assignment's token
	crashes int   // how many assignments before this one ended without being released, with the same first offset
	from    int64 // the first pending offset when the assignment began
	suspect int64 // below it the first record of each key may have been begun by a consumer that died
	seen    map[string]bool
}

// load is a number of records, and the bytes of their payload.
type load struct{ records, bytes int }

func (l *load) add(e *entry) { l.records, l.bytes = l.records+1, l.bytes+len(e.record.Value) }

func (l *load) remove(e *entry) { l.records, l.bytes = l.records-1, l.bytes-len(e.record.Value) }

// entry is a pending record. It has no lane if only its offset is known: it was pending under
// the former assignment, and has not been read again.
type entry struct {
	offset    int64
	attempt   int // of its next delivery, or of the present one, without crashes
	crashes   int // consumers that may have died of it
	lane      *lane
	delivered bool
	completed bool
	record    *kgo.Record
}

func (e *entry) unread() bool { return e.lane == nil && !e.completed }

type lane struct {
	key       string // empty: the lane of one record
	pending   int
	delivered int  // of these
	blocked   bool // nothing is delivered
	parked    bool // until resume
	until     time.Time
}

// restore begins an assignment at what was committed. Without a commit it begins at offset.
func restore(offset int64, c committed, counter int64, window int) *offsets {
	o := &offsets{unread: len(c.pending), lanes: map[string]*lane{}, from: offset, seen: map[string]bool{}}
	o.next = max(offset, c.next)
	o.token = max(c.token+1, counter)
	for i, p := range c.pending {
		o.pending = append(o.pending, &entry{offset: p, attempt: c.attempt(i)})
	}
	if c.held {
		o.crashes, o.suspect = c.crashes+1, o.next+int64(window)
	}
	return o
}

// begin notes the first offset that the log has.
func (o *offsets) begin(first int64) {
	o.skip(first)
	o.next = max(o.next, first)
}

// prefix is the offset to commit: everything below it is completed.
func (o *offsets) prefix() int64 {
	if len(o.pending) > 0 {
		return o.pending[0].offset
	}
	return o.next
}

// find returns the index of the first record that is not below offset.
func (o *offsets) find(offset int64) (i int, found bool) {
	if len(o.pending) > 0 { // most logs have no gaps
		if i := offset - o.pending[0].offset; 0 <= i && i < int64(len(o.pending)) && o.pending[i].offset == offset {
			return int(i), true
		}
	}
	i = sort.Search(len(o.pending), func(i int) bool { return o.pending[i].offset >= offset })
	return i, i < len(o.pending) && o.pending[i].offset == offset
}

// arrive notes a record that was read. It reports false if the record was completed before.
// Offsets come in order. What lies between them is not in the log.
func (o *offsets) arrive(r *kgo.Record) bool {
	if o.unread > 0 {
		o.skip(r.Offset)
	}
	var e *entry
	if r.Offset >= o.next {
		e = &entry{offset: r.Offset, attempt: 1}
		o.pending = append(o.pending, e)
		o.next = r.Offset + 1
	} else if i, found := o.find(r.Offset); found && o.pending[i].unread() {
		e = o.pending[i]
		o.unread--
	} else {
		return false
	}
	e.record = r
	o.held.add(e)
	o.queue(e)
	return true
}

// skip completes what is below offset and was not read again: it is not in the log any more.
func (o *offsets) skip(offset int64) {
	for _, e := range o.pending {
		if e.unread() && e.offset < offset {
			o.unread--
			o.close(e)
		}
	}
	o.sweep()
}

// close completes a record. Afterwards sweep is called.
func (o *offsets) close(e *entry) {
	e.completed, e.record = true, nil
	o.done++
}

// sweep removes completed records, if they are the first ones or many.
func (o *offsets) sweep() {
	first := 0
	for first < len(o.pending) && o.pending[first].completed {
		first++
	}
	o.pending = slices.Delete(o.pending, 0, first)
	if o.done -= first; o.done > len(o.pending)/2 {
		o.pending = slices.DeleteFunc(o.pending, func(e *entry) bool { return e.completed })
		o.done = 0
	}
}

// queue puts a record behind those of its key.
func (o *offsets) queue(e *entry) {
	l := o.lanes[string(e.record.Key)]
	if l == nil {
		l = &lane{key: string(e.record.Key)}
		if l.key != "" {
			o.lanes[l.key] = l
		}
	}
	if e.offset < o.suspect && !o.seen[l.key] {
		e.crashes = o.crashes
		if l.key != "" {
			o.seen[l.key] = true
		}
	}
	e.lane = l
	l.pending++
	if l.blocked {
		o.blocked.add(e)
	} else {
		o.ready = append(o.ready, e)
	}
}

// take delivers records, and reduces the limit by them. first says that nothing else is
// delivered with them. wait is the time until a paused lane begins again; 0 if there is none.
func (o *offsets) take(limit *driver.QueueLimit, first bool, now time.Time, deliver func(*entry)) (wait time.Duration) {
	for _, l := range o.due(now) {
		o.unblock(l)
	}
	n := 0
	for _, e := range o.ready {
		size := len(e.record.Value)
		if limit.Messages <= 0 || size > limit.Bytes && !(first && n == 0) {
			break
		}
		limit.Messages--
		limit.Bytes -= size
		e.delivered = true
		e.lane.delivered++
		o.delivered++
		n++
		deliver(e)
	}
	o.ready = slices.Delete(o.ready, 0, n)
	for _, l := range o.paused {
		if left := l.until.Sub(now); wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}

// due removes the paused lanes whose time has come, and returns them.
func (o *offsets) due(now time.Time) (due []*lane) {
	o.paused = slices.DeleteFunc(o.paused, func(l *lane) bool {
		if l.until.After(now) {
			return false
		}
		due = append(due, l)
		return true
	})
	return due
}

func (o *offsets) unblock(l *lane) {
	l.blocked, l.until = false, time.Time{}
	for e := range o.waiting(l) {
		o.blocked.remove(e)
		o.ready = append(o.ready, e)
	}
}

// block stops the deliveries of a lane.
func (o *offsets) block(l *lane) {
	if l.blocked {
		return
	}
	l.blocked = true
	o.ready = slices.DeleteFunc(o.ready, func(e *entry) bool { return e.lane == l })
	for e := range o.waiting(l) {
		o.blocked.add(e)
	}
}

// waiting are the records of a lane that are not delivered, in order.
func (o *offsets) waiting(l *lane) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, e := range o.pending {
			if e.lane == l && !e.delivered && !e.completed && !yield(e) {
				return
			}
		}
	}
}

// complete notes that a record was handled, or is a dead letter. Afterwards sweep is called.
func (o *offsets) complete(place int64) {
	if i, found := o.find(place); found && o.pending[i].delivered {
		e := o.pending[i]
		e.lane.pending--
		o.held.remove(e)
		o.back(e)
		o.close(e)
	}
}

// giveBack notes a Retry, Release or Park.
func (o *offsets) giveBack(s driver.Settlement, now time.Time) {
	i, found := o.find(s.Place)
	if !found || !o.pending[i].delivered {
		return
	}
	e := o.pending[i]
	o.block(e.lane)
	switch s.Outcome {
	case driver.Retry:
		if !s.Uncounted {
			e.attempt++
		}
		if until := now.Add(s.After); until.After(e.lane.until) {
			e.lane.until = until
		}
	case driver.Park:
		e.lane.parked = true
	}
	o.blocked.add(e)
	o.back(e)
}

// back notes that a record is not delivered any more.
func (o *offsets) back(e *entry) {
	l := e.lane
	e.delivered = false
	l.delivered--
	o.delivered--
	if l.delivered > 0 {
		return
	}
	if l.pending == 0 {
		delete(o.lanes, l.key)
	} else if l.blocked && !l.parked {
		o.paused = append(o.paused, l)
	}
}

// resume lets a parked lane go on. It reports false if there is none of the key.
func (o *offsets) resume(key string) bool {
	l := o.lanes[key]
	if l == nil || !l.parked {
		return false
	}
	l.parked = false
	if l.delivered == 0 {
		o.paused = append(o.paused, l)
	}
	return true
}

// oldest is the age of the first pending record, and the keys that are parked.
func (o *offsets) oldest(now time.Time) (age time.Duration, parked []string) {
	if len(o.pending) > 0 && o.pending[0].lane != nil {
		age = max(0, now.Sub(o.pending[0].record.Timestamp))
	}
	for key, l := range o.lanes {
		if l.parked {
			parked = append(parked, key)
		}
	}
	slices.Sort(parked)
	return age, parked
}

// full reports whether no more should be read: what waits in blocked lanes has reached a limit, or
// the metadata of the last commit had no room for every completed offset.
func (o *offsets) full(limit load, whole bool) bool {
	return o.blocked.records >= limit.records || o.blocked.bytes >= limit.bytes ||
		!whole && o.unread == 0 // what is unread has to be read again
}

// snapshot is what to commit. held says that the assignment goes on.
func (o *offsets) snapshot(held bool) committed {
	c := committed{prefix: o.prefix(), next: o.next, token: o.token, held: held}
	kept := held && c.prefix == o.from // the crashes count for records that are not read yet, too
	if kept {
		c.crashes = o.crashes
	}
	c.pending = make([]int64, 0, len(o.pending)-o.done)
	for _, e := range o.pending {
		if e.completed {
			continue
		}
		n := e.attempt
		if !kept {
			n += e.crashes
		}
		if n > 1 {
			c.attempts = append(c.attempts, attempt{len(c.pending), n})
		}
		c.pending = append(c.pending, e.offset)
	}
	return c
}
