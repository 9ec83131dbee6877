package lanes

import (
	"iter"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Partition is the state of one partition under one assignment. It is pure: it does no I/O, starts
// no goroutine, and receives the time.
//
// A record is pending from its arrival until it is completed, by an Ack or a Dead. The
// committed offset is that of the first pending record. Everything from there to next that is
// not pending is completed: handled, or not in the log.
//
// Records of a key form a lane. A record is waiting or delivered. After a Retry, Release or
// Park nothing of its lane is delivered until all that was delivered is settled; then the lane
// begins again with its first pending record.
type Partition struct {
	next    int64   // the offset after the last one that was read
	pending []entry // by offset; also some that are completed
	first   int     // index of the first that is not
	done    int     // how many are completed
	lanes   map[string]*lane
	idle    int     // how many of these have no pending record
	ready   []int64 // offsets that are waiting, and to be delivered next
	paused  []*lane // nothing of them is delivered, and they wait for their time

	delivered int
	unread    int  // pending, and not read again yet
	held      load // of what was read and is not completed
	blocked   load // of it, what waits in lanes that are blocked

	token   int64 // counter of the assignment's token
	crashes int   // how many assignments before this one ended without being released, with the same first offset
	from    int64 // the first pending offset when the assignment began
	suspect int64 // below it the first record of each key may have been begun by a consumer that died
	seen    map[string]bool

	messages []driver.Received // messages to use; allocated together
	taken    []*lane           // used by Take
}

// chunk is how many messages are allocated together. A message that is kept keeps those of its chunk,
// so those of blocked lanes are not in one.
const chunk = 48

func (o *Partition) newMessage() *driver.Received {
	if len(o.messages) == 0 {
		o.messages = make([]driver.Received, chunk)
	}
	m := &o.messages[0]
	o.messages = o.messages[1:]
	return m
}

// Idle lanes are kept for their next record: up to keptLanes, or half of all lanes. Those with
// longer keys than keptKey, in bytes, are not kept.
const (
	keptLanes = 1024
	keptKey   = 256
)

// load is a number of records, and the bytes of their payload.
type load struct{ records, bytes int }

func (l *load) add(e *entry) { l.records, l.bytes = l.records+1, l.bytes+int(e.bytes) }

func (l *load) remove(e *entry) { l.records, l.bytes = l.records-1, l.bytes-int(e.bytes) }

// entry is a pending record. It has no lane if only its offset is known: it was pending under
// the former assignment, and has not been read again.
type entry struct {
	offset    int64
	attempt   int // of its next delivery, or of the present one, without crashes
	crashes   int // consumers that may have died of it
	lane      *lane
	message   *driver.Received // nil before it was read, and after it was completed
	next      int32            // index of the next one of the lane that Take delivers
	bytes     int32            // of the payload
	delivered bool
	completed bool
}

func (e *entry) unread() bool { return e.lane == nil && !e.completed }

type lane struct {
	key       string // empty: the lane of one record
	pending   int
	delivered int  // of these
	blocked   bool // nothing is delivered
	parked    bool // until resume
	until     time.Time

	first, last int32 // indexes of those that Take delivers
	taken       int   // how many these are
}

// Restore begins an assignment at what was committed. Without a commit it begins at offset.
func Restore(offset int64, c Committed, counter int64, window int) *Partition {
	o := &Partition{lanes: map[string]*lane{}, from: offset, seen: map[string]bool{}}
	o.next = max(offset, c.Next)
	o.token = max(c.Token+1, counter)
	at := c.Prefix
	for _, r := range c.runs {
		for range r.pending {
			o.pending = append(o.pending, entry{offset: at, attempt: 1})
			at++
		}
		at += r.completed
	}
	o.unread = len(o.pending)
	for _, a := range c.attempts {
		if a.index < o.unread {
			o.pending[a.index].attempt = a.number
		}
	}
	if c.Held {
		o.crashes, o.suspect = c.crashes+1, o.next+int64(window)
	}
	return o
}

// Begin notes the first offset that the log has.
func (o *Partition) Begin(first int64) {
	o.skipUnread(first)
	o.next = max(o.next, first)
}

// Prefix is the offset to commit: everything below it is completed.
func (o *Partition) Prefix() int64 {
	if o.first < len(o.pending) {
		return o.pending[o.first].offset
	}
	return o.next
}

// find returns the index of the first record that is not below offset.
func (o *Partition) find(offset int64) (i int, found bool) {
	if len(o.pending) > 0 { // most logs have no gaps
		if i := offset - o.pending[0].offset; 0 <= i && i < int64(len(o.pending)) && o.pending[i].offset == offset {
			return int(i), true
		}
	}
	i = sort.Search(len(o.pending), func(i int) bool { return o.pending[i].offset >= offset })
	return i, i < len(o.pending) && o.pending[i].offset == offset
}

// Arrive notes a record that was read, with the size of its payload, which is below 2 GiB. It returns
// the message for Take, with key and place; the caller sets the rest, except the attempt. It returns
// nil if the record was completed before. Offsets come in order. What lies between them is not in the
// log. An empty key is none.
func (o *Partition) Arrive(offset int64, key []byte, size int) *driver.Received {
	if o.unread > 0 {
		o.skipUnread(offset)
	}
	i := len(o.pending)
	if offset >= o.next {
		o.pending = append(o.pending, entry{offset: offset, attempt: 1})
		o.next = offset + 1
	} else if at, found := o.find(offset); found && o.pending[at].unread() {
		i = at
		o.unread--
	} else {
		return nil
	}
	e := &o.pending[i]
	e.bytes = int32(size)
	o.held.add(e)
	o.enqueue(e, key)
	if e.message = o.newMessage(); e.lane.blocked {
		e.detach()
	}
	e.message.Key, e.message.Place = e.lane.key, offset
	return e.message
}

// skipUnread completes the records below offset that were not read again: the log has lost them.
func (o *Partition) skipUnread(offset int64) {
	for i := range o.pending {
		if e := &o.pending[i]; e.unread() && e.offset < offset {
			o.unread--
			o.markCompleted(e)
		}
	}
	o.Sweep()
}

// markCompleted completes a record. Call Sweep afterwards.
func (o *Partition) markCompleted(e *entry) {
	e.completed, e.message = true, nil
	o.done++
}

// Sweep passes over completed records, and removes them if they are many.
func (o *Partition) Sweep() {
	for o.first < len(o.pending) && o.pending[o.first].completed {
		o.first++
	}
	if o.done <= len(o.pending)/2 {
		return
	}
	left := o.pending[:0]
	for i := o.first; i < len(o.pending); i++ {
		if !o.pending[i].completed {
			left = append(left, o.pending[i])
		}
	}
	o.pending, o.first, o.done = left, 0, 0
}

// enqueue puts a record behind those of its key.
func (o *Partition) enqueue(e *entry, key []byte) {
	l := o.lanes[string(key)]
	switch {
	case l == nil:
		l = &lane{key: string(key)}
		if l.key != "" {
			o.lanes[l.key] = l
		}
	case l.pending == 0:
		o.idle--
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
		o.ready = append(o.ready, e.offset)
	}
}

// Take appends the first messages to all, those of a lane together, and reduces the limit by them.
// wait is the time until a paused lane begins again; 0 if there is none.
func (o *Partition) Take(all []*driver.Received, limit *driver.QueueLimit, now time.Time) (_ []*driver.Received, wait time.Duration) {
	o.paused = slices.DeleteFunc(o.paused, func(l *lane) bool {
		if l.until.After(now) {
			return false
		}
		o.unblock(l)
		return true
	})
	n := 0
	for _, offset := range o.ready {
		i, _ := o.find(offset)
		e := &o.pending[i]
		size := int(e.bytes)
		if limit.Messages <= 0 || size > limit.Bytes && len(all)+n > 0 {
			break
		}
		limit.Messages--
		limit.Bytes -= size
		e.delivered = true
		l := e.lane
		l.delivered++
		n++
		if l.taken == 0 {
			l.first = int32(i)
			o.taken = append(o.taken, l)
		} else {
			o.pending[l.last].next = int32(i)
		}
		l.last = int32(i)
		l.taken++
	}
	o.delivered += n
	if n > len(o.ready)/2 { // it moves at most as many as it removes
		o.ready = slices.Delete(o.ready, 0, n)
	} else {
		o.ready = o.ready[n:]
	}
	for _, l := range o.taken {
		for i := l.first; l.taken > 0; l.taken-- {
			e := &o.pending[i]
			e.message.Attempt = e.attempt + e.crashes
			all = append(all, e.message)
			i = e.next
		}
	}
	clear(o.taken)
	o.taken = o.taken[:0]
	for _, l := range o.paused {
		if left := l.until.Sub(now); wait == 0 || left < wait {
			wait = left
		}
	}
	return all, wait
}

func (o *Partition) unblock(l *lane) {
	l.blocked, l.until = false, time.Time{}
	for e := range o.waiting(l) {
		o.blocked.remove(e)
		o.ready = append(o.ready, e.offset)
	}
}

// block stops the deliveries of a lane.
func (o *Partition) block(l *lane) {
	if l.blocked {
		return
	}
	l.blocked = true
	o.ready = slices.DeleteFunc(o.ready, func(offset int64) bool {
		i, _ := o.find(offset)
		return o.pending[i].lane == l
	})
	for e := range o.waiting(l) {
		o.blocked.add(e)
		e.detach()
	}
}

// waiting are the records of a lane that are not delivered, in order.
func (o *Partition) waiting(l *lane) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i := range o.pending {
			if e := &o.pending[i]; e.lane == l && !e.delivered && !e.completed && !yield(e) {
				return
			}
		}
	}
}

// Complete notes that a record was handled, or is a dead letter. Call Sweep after the last of several.
func (o *Partition) Complete(offset int64) {
	if i, found := o.find(offset); found && o.pending[i].delivered {
		e := &o.pending[i]
		e.lane.pending--
		o.held.remove(e)
		o.endDelivery(e)
		o.markCompleted(e)
	}
}

// GiveBack notes a Retry, Release or Park.
func (o *Partition) GiveBack(s *driver.Settlement, now time.Time) {
	for m := range s.All() {
		if i, found := o.find(m.Place); found && o.pending[i].delivered {
			o.giveBack(&o.pending[i], s, now)
		}
	}
}

func (o *Partition) giveBack(e *entry, s *driver.Settlement, now time.Time) {
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
	e.detach() // what was delivered does not change
	o.endDelivery(e)
}

// detach copies the message out of its chunk.
func (e *entry) detach() {
	m := *e.message
	e.message = &m
}

// endDelivery notes that a record is not delivered any more.
func (o *Partition) endDelivery(e *entry) {
	l := e.lane
	e.delivered = false
	l.delivered--
	o.delivered--
	if l.delivered > 0 {
		return
	}
	switch {
	case l.pending > 0:
		if l.blocked && !l.parked {
			o.paused = append(o.paused, l)
		}
	case l.key == "":
	case len(l.key) > keptKey:
		delete(o.lanes, l.key)
	default:
		if o.idle++; o.idle > max(keptLanes, len(o.lanes)/2) {
			maps.DeleteFunc(o.lanes, func(_ string, l *lane) bool { return l.pending == 0 })
			o.idle = 0
		}
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

// First is the first pending message; nil if there is none, or if it was not read under this
// assignment.
func (o *Partition) First() *driver.Received {
	if o.first < len(o.pending) {
		return o.pending[o.first].message
	}
	return nil
}

// Parked are the keys that are parked, in order.
func (o *Partition) Parked() (keys []string) {
	for key, l := range o.lanes {
		if l.parked {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Full reports whether no more should be read. Either what waits in blocked lanes has reached a
// limit, or whole is false: the metadata of the last commit had no room for every completed
// offset.
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
		for _, e := range o.pending[o.first:] {
			if e.unread() {
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
	var r run
	at, index := c.Prefix, 0 // where r ends; how many are pending before
	for i := range o.pending[o.first:] {
		e := &o.pending[o.first+i]
		if e.completed {
			continue
		}
		if e.offset > at {
			r.completed = e.offset - at
			c.runs = append(c.runs, r)
			r.pending = 0
		}
		n := e.attempt
		if !kept {
			n += e.crashes
		}
		if n > 1 {
			c.attempts = append(c.attempts, attempt{index, n})
		}
		r.pending++
		at = e.offset + 1
		index++
	}
	if index > 0 {
		r.completed = o.next - at
		c.runs = append(c.runs, r)
	}
	return c
}
