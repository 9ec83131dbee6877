package lanes

import (
	"slices"
	"sort"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Partition is what a consumer knows of one partition under one assignment. It is pure: it does
// no I/O, starts nothing, and receives the time.
//
// A record is pending from its arrival until it is completed, by an Ack or a Dead. The
// committed offset is that of the first pending record. Everything from there to next that is
// not pending is completed: handled, or not in the log.
//
// Records of a key form a lane. A record is waiting or delivered. After a Retry, Release or
// Park nothing of its lane is delivered until all that was delivered is settled; then the lane
// begins again with its first pending record.
type Partition struct {
	next    int64    // the offset behind the last one that was read
	pending []*entry // by offset
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

func (l *load) add(e *entry) { l.records, l.bytes = l.records+1, l.bytes+len(e.record.Payload) }

func (l *load) remove(e *entry) { l.records, l.bytes = l.records-1, l.bytes-len(e.record.Payload) }

// entry is a pending record. It has no lane if only its offset is known: it was pending under
// the former assignment, and has not been read again.
type entry struct {
	offset    int64
	attempt   int // of its next delivery, or of the present one, without crashes
	crashes   int // consumers that may have died of it
	lane      *lane
	delivered bool
	completed bool
	record    driver.Received
}

type lane struct {
	key       string // empty: the lane of one record
	entries   []*entry
	delivered int
	blocked   bool // nothing is delivered
	parked    bool // until resume
	until     time.Time
}

// Restore begins an assignment at what was committed. Without a commit it begins at offset.
func Restore(offset int64, c Committed, counter int64, window int) *Partition {
	o := &Partition{unread: len(c.pending), lanes: map[string]*lane{}, from: offset, seen: map[string]bool{}}
	o.next = max(offset, c.Next)
	o.token = max(c.Token+1, counter)
	for i, p := range c.pending {
		o.pending = append(o.pending, &entry{offset: p, attempt: c.attempt(i)})
	}
	if c.Held {
		o.crashes, o.suspect = c.crashes+1, o.next+int64(window)
	}
	return o
}

// Begin notes the first offset that the log has.
func (o *Partition) Begin(first int64) {
	o.skip(first)
	o.next = max(o.next, first)
}

// Prefix is the offset to commit: everything below it is completed.
func (o *Partition) Prefix() int64 {
	if len(o.pending) > 0 {
		return o.pending[0].offset
	}
	return o.next
}

// find returns the index of the first pending record that is not below offset.
func (o *Partition) find(offset int64) (i int, found bool) {
	i = sort.Search(len(o.pending), func(i int) bool { return o.pending[i].offset >= offset })
	return i, i < len(o.pending) && o.pending[i].offset == offset
}

// Arrive notes a record that was read. It reports false if the record was completed before.
// Offsets come in order. What lies between them is not in the log.
func (o *Partition) Arrive(m driver.Received) bool {
	if o.unread > 0 {
		o.skip(m.Place)
	}
	i, found := o.find(m.Place)
	switch {
	case found && o.pending[i].lane == nil:
		o.unread--
	case m.Place >= o.next:
		o.pending = append(o.pending, &entry{offset: m.Place, attempt: 1})
		o.next = m.Place + 1
	default:
		return false
	}
	e := o.pending[i]
	e.record = m
	o.held.add(e)
	o.queue(e)
	return true
}

// skip completes what is below offset and was not read again: it is not in the log any more.
func (o *Partition) skip(offset int64) {
	o.pending = slices.DeleteFunc(o.pending, func(e *entry) bool {
		gone := e.lane == nil && e.offset < offset
		if gone {
			o.unread--
		}
		return gone
	})
}

// queue puts a record behind those of its key.
func (o *Partition) queue(e *entry) {
	key := e.record.Key
	l := o.lanes[key]
	if key == "" || l == nil {
		l = &lane{key: key}
	}
	if key != "" {
		o.lanes[key] = l
	}
	if e.offset < o.suspect && (key == "" || !o.seen[key]) {
		e.crashes = o.crashes
		if key != "" {
			o.seen[key] = true
		}
	}
	e.lane = l
	l.entries = append(l.entries, e)
	if l.blocked {
		o.blocked.add(e)
	} else {
		o.ready = append(o.ready, e)
	}
}

// Take delivers records, and reduces the limit by them. first says that nothing else is
// delivered with them. wait is the time until a paused lane begins again; 0 if there is none.
func (o *Partition) Take(limit *driver.QueueLimit, first bool, now time.Time) (all []driver.Received, wait time.Duration) {
	for _, l := range o.due(now) {
		o.unblock(l)
	}
	for _, e := range o.ready {
		size := len(e.record.Payload)
		if limit.Messages <= 0 || size > limit.Bytes && !(first && len(all) == 0) {
			break
		}
		limit.Messages--
		limit.Bytes -= size
		e.delivered = true
		e.lane.delivered++
		o.delivered++
		m := e.record
		m.Attempt = e.attempt + e.crashes
		all = append(all, m)
	}
	o.ready = slices.Delete(o.ready, 0, len(all))
	for _, l := range o.paused {
		if left := l.until.Sub(now); wait == 0 || left < wait {
			wait = left
		}
	}
	return all, wait
}

// due removes the paused lanes whose time has come, and returns them.
func (o *Partition) due(now time.Time) (due []*lane) {
	o.paused = slices.DeleteFunc(o.paused, func(l *lane) bool {
		if l.until.After(now) {
			return false
		}
		due = append(due, l)
		return true
	})
	return due
}

func (o *Partition) unblock(l *lane) {
	l.blocked, l.until = false, time.Time{}
	for _, e := range l.entries {
		o.blocked.remove(e)
		o.ready = append(o.ready, e)
	}
}

// block stops the deliveries of a lane.
func (o *Partition) block(l *lane) {
	if l.blocked {
		return
	}
	l.blocked = true
	o.ready = slices.DeleteFunc(o.ready, func(e *entry) bool { return e.lane == l })
	for _, e := range l.entries {
		if !e.delivered {
			o.blocked.add(e)
		}
	}
}

// Complete notes that records were handled, or are dead letters.
func (o *Partition) Complete(places ...int64) {
	for _, place := range places {
		if i, found := o.find(place); found && o.pending[i].delivered {
			e := o.pending[i]
			at := slices.Index(e.lane.entries, e)
			e.lane.entries = slices.Delete(e.lane.entries, at, at+1)
			e.completed = true
			o.held.remove(e)
			o.back(e)
		}
	}
	o.pending = slices.DeleteFunc(o.pending, func(e *entry) bool { return e.completed })
}

// GiveBack notes a Retry, Release or Park.
func (o *Partition) GiveBack(s driver.Settlement, now time.Time) {
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
func (o *Partition) back(e *entry) {
	l := e.lane
	e.delivered = false
	l.delivered--
	o.delivered--
	if l.delivered > 0 {
		return
	}
	if len(l.entries) == 0 {
		delete(o.lanes, l.key)
	} else if l.blocked && !l.parked {
		o.paused = append(o.paused, l)
	}
}

// Resume lets a parked lane go on. It reports false if there is none of the key.
func (o *Partition) Resume(key string) bool {
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

// Oldest is the age of the first pending record, and the keys that are parked.
func (o *Partition) Oldest(now time.Time) (age time.Duration, parked []string) {
	if len(o.pending) > 0 && o.pending[0].lane != nil {
		age = max(0, now.Sub(o.pending[0].record.Added))
	}
	for key, l := range o.lanes {
		if l.parked {
			parked = append(parked, key)
		}
	}
	slices.Sort(parked)
	return age, parked
}

// Full reports whether no more should be read: what waits in blocked lanes has reached a limit, or
// the metadata of the last commit had no room for every completed offset (whole is false).
func (o *Partition) Full(records, bytes int, whole bool) bool {
	return o.blocked.records >= records || o.blocked.bytes >= bytes ||
		!whole && o.unread == 0 // what is unread has to be read again
}

// Token is the counter of the assignment's token.
func (o *Partition) Token() int64 { return o.token }

// Delivered is how many records are in the hands of the consumer.
func (o *Partition) Delivered() int { return o.delivered }

// Ahead is what was read and can be delivered, in records, and with what is delivered in bytes.
func (o *Partition) Ahead() (records, bytes int) {
	return len(o.ready), o.held.bytes - o.blocked.bytes
}

// Unread is the first offset that was not read under this assignment.
func (o *Partition) Unread() int64 {
	if o.unread > 0 {
		for _, e := range o.pending {
			if e.lane == nil {
				return e.offset
			}
		}
	}
	return o.next
}

// Snapshot is what to commit. held says that the assignment goes on.
func (o *Partition) Snapshot(held bool) Committed {
	c := Committed{Prefix: o.Prefix(), Next: o.next, Token: o.token, Held: held}
	kept := held && c.Prefix == o.from // the crashes count for records that are not read yet, too
	if kept {
		c.crashes = o.crashes
	}
	for i, e := range o.pending {
		n := e.attempt
		if !kept {
			n += e.crashes
		}
		c.pending = append(c.pending, e.offset)
		if n > 1 {
			c.attempts = append(c.attempts, attempt{i, n})
		}
	}
	return c
}
