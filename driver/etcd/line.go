package etcd

import (
	"bytes"
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// place is one contender in a line, ours or another client's.
type place struct {
	key     string
	created int64  // create revision: the order of service
	base    int64  // stored with it; unknownBase if another client wrote it
	owner   string // for display
	lease   clientv3.LeaseID
}

const unknownBase = -1

// change is one event of the watch.
type change struct {
	rev     int64
	deleted bool
	place   place // only key if deleted
}

// effect is a change of one of our own contenders.
type effect struct {
	kind   effectKind
	place         // only its key if vanished
	ahead  int    // for placed: waiters before it, the holder not counted
	holder string // for placed
}

type effectKind int

const (
	granted  effectKind = iota // it is the first
	placed                     // it waits, and its place has changed
	vanished                   // its key is gone, or was replaced
)

// line is the queue of one name, built from snapshots and the watch: a pure machine that turns
// changes into effects. Snapshots may be late, and changes may be older than the last snapshot.
// If a caller may have missed changes it calls restart.
type line struct {
	listed int64 // revision of the last snapshot; 0 while one is needed
	least  int64 // the revision that a needed snapshot must have
	seen   int64 // highest revision known
	places []place
	early  []change // received while a snapshot is needed
	mine   []position
	beats  int // heartbeats at which it needed a snapshot
	age    int // heartbeats since it has a contender of ours
}

// position is the last reported place of one of our own contenders.
type position struct {
	key     string
	after   int64 // its key is created later; an earlier key of this name is a former one
	present bool  // it is in line by the latest places
	created int64 // 0 while it has not been seen in line
	holds   bool
	ahead   int
	holder  string
}

// restart makes the line ignore state older than rev: changes up to then may have been missed,
// and no later one will be. The line has no effects before a snapshot of rev or later.
func (l *line) restart(rev int64) {
	l.least = max(l.least, l.seen, rev)
	l.listed, l.early, l.beats = 0, nil, 0
}

// join registers a key as ours, in an unknown state. It must be called before the
// key is written, with a revision that the store has reached.
func (l *line) join(key string, after int64) {
	l.leave(key)
	l.mine = append(l.mine, position{key: key, after: after})
}

// leave removes key from ours; empty reports whether none of ours is left.
func (l *line) leave(key string) (empty bool) {
	l.mine = slices.DeleteFunc(l.mine, func(s position) bool { return s.key == key })
	return len(l.mine) == 0
}

// list takes a snapshot of the whole line at revision rev, and keeps places. It ignores
// a snapshot older than the needed one, or than a change since the last one.
func (l *line) list(rev int64, places []place) []effect {
	if rev < l.least || rev < l.seen && l.listed > 0 {
		return nil
	}
	l.listed, l.seen = rev, rev
	l.places = places
	slices.SortFunc(l.places, byCreation)
	early := l.early
	l.early = nil
	for _, c := range early {
		l.take(c)
	}
	return l.evaluate()
}

// apply takes one event. Events of one revision may come one by one.
func (l *line) apply(c change) []effect {
	if l.listed == 0 {
		l.early = append(l.early, c)
		return nil
	}
	if !l.take(c) {
		return nil
	}
	return l.evaluate()
}

// take changes the places, and reports whether anything changed.
func (l *line) take(c change) bool {
	if c.rev <= l.listed {
		return false // already in the snapshot
	}
	l.seen = max(l.seen, c.rev)
	i := slices.IndexFunc(l.places, func(p place) bool { return p.key == c.place.key })
	if i >= 0 && !c.deleted && l.places[i].created == c.place.created {
		return false // rewritten in place: the order is unchanged
	}
	if i >= 0 {
		l.places = slices.Delete(l.places, i, i+1)
	}
	if !c.deleted {
		at, _ := slices.BinarySearchFunc(l.places, c.place, byCreation)
		l.places = slices.Insert(l.places, at, c.place)
	}
	return i >= 0 || !c.deleted
}

func byCreation(a, b place) int { return cmp.Compare(a.created, b.created) }

// evaluate returns the changes for each of ours, in the order of the line, vanished ones last.
func (l *line) evaluate() (effects []effect) {
	for i, p := range l.places {
		if mine := l.own(p); mine != nil {
			mine.present = true
			effects = mine.update(effects, i, p, l.places[0].owner)
		}
	}
	for i := range l.mine {
		mine := &l.mine[i]
		if !mine.present && mine.created != 0 {
			effects = append(effects, mine.reset())
		}
		mine.present = false
	}
	return effects
}

// own returns the position of the contender at a place, nil if it is not ours.
func (l *line) own(p place) *position {
	i := slices.IndexFunc(l.mine, func(s position) bool { return s.key == p.key && p.created > s.after })
	if i < 0 {
		return nil
	}
	return &l.mine[i]
}

// reset clears the position of a contender whose key was deleted.
func (s *position) reset() effect {
	*s = position{key: s.key, after: s.after, present: s.present}
	return effect{kind: vanished, place: place{key: s.key}}
}

// update appends the changes for a contender at index i of the line.
func (s *position) update(effects []effect, i int, p place, holder string) []effect {
	if s.created != 0 && (s.created != p.created || s.holds && i > 0) {
		// deleted and written again, or no longer first: its claim is over
		effects = append(effects, s.reset())
	}
	fresh := s.created == 0
	s.created = p.created
	switch {
	case i == 0 && !s.holds:
		s.holds = true
		return append(effects, effect{kind: granted, place: p})
	case i > 0 && (fresh || s.ahead != i-1 || s.holder != holder):
		s.ahead, s.holder = i-1, holder
		return append(effects, effect{kind: placed, place: p, ahead: i - 1, holder: holder})
	}
	return effects
}

// queues holds the lines of a session that have a contender of ours, and the keys
// under its lease. It does no I/O. Callers hold the driver's mutex.
type queues struct {
	nudge func() // asks for a deletion of the keys in deleting

	ended    bool // contenders get no further effects
	lines    map[string]*line
	byKey    map[string]*contender
	deleting map[string]*contender // keys of ours to be deleted, and the contender whose failed release waits for it
	spent    map[string]bool       // keys that a request with unknown outcome may still write or delete
	// crowded are lines with other contenders since the last heartbeat or the one before.
	crowded, before map[string]bool

	highest int64 // highest revision known
}

func newQueues(highest int64, nudge func()) queues {
	return queues{nudge: nudge, lines: map[string]*line{}, byKey: map[string]*contender{},
		deleting: map[string]*contender{}, spent: map[string]bool{}, crowded: map[string]bool{}, highest: highest}
}

// restart makes every line be read again, at rev or later.
func (q *queues) restart(rev int64) {
	for _, l := range q.lines {
		l.restart(rev)
	}
}

// age counts the heartbeats for which lines have needed a snapshot, and have existed.
// At the first one the answer with the snapshot is probably on its way. old reports
// whether a line has existed for a whole heartbeat.
func (q *queues) age() (old bool) {
	q.crowded, q.before = map[string]bool{}, q.crowded
	for _, l := range q.lines {
		l.age++
		old = old || l.age > 1
		if l.listed == 0 {
			l.beats++
		}
	}
	return old
}

// unread lists the lines to be read: all of them, or those that have long had no snapshot.
func (q *queues) unread(all bool) (lines []string) {
	for at, l := range q.lines {
		if all || l.listed == 0 && l.beats > 1 {
			lines = append(lines, at)
		}
	}
	return lines
}

// toDelete returns up to most of the keys to delete.
func (q *queues) toDelete(most int) (keys []string) {
	for key := range q.deleting {
		if len(keys) < most {
			keys = append(keys, key)
		}
	}
	return keys
}

// removed records that keys of ours were deleted at rev. It returns the contenders
// whose release waited for the last of them, and is done.
func (q *queues) removed(rev int64, keys ...string) (over []*contender) {
	q.highest = max(q.highest, rev)
	for _, key := range keys {
		c := q.deleting[key]
		delete(q.deleting, key)
		if c != nil && !slices.ContainsFunc(c.keys(), q.isDeleting) {
			over = append(over, c)
		}
	}
	return over
}

// leftovers returns the keys that a closing driver deletes.
func (q *queues) leftovers() (keys []string, held bool) {
	for key := range q.deleting {
		keys = append(keys, key)
	}
	for key, c := range q.byKey {
		held = held || c.granted
		if !c.granted {
			keys = append(keys, key)
		}
	}
	return keys, held
}

// own handles a key under our lease. If no contender has it, it comes from a late request
// whose caller gave up. It would stay in its line as long as the session, so it is deleted.
func (q *queues) own(key string) {
	if q.byKey[key] == nil {
		q.scheduleDelete(key)
	}
}

// scheduleDelete requests the deletion of a key, and repeats it until it succeeds.
func (q *queues) scheduleDelete(key string) {
	if !q.isDeleting(key) {
		q.deleting[key] = nil
	}
	q.spent[key] = true
	q.nudge()
}

func (q *queues) isDeleting(key string) bool {
	_, yes := q.deleting[key]
	return yes
}

// free returns a key in a line that no contender has. Keys are reused, because etcd
// keeps deleted ones in its index until it compacts, and a read of the line would pass
// all of them. Keys that a late request may still write or delete are not reused.
func (q *queues) free(at string, lease clientv3.LeaseID) string {
	n := 0
	if l := q.lines[at]; l != nil {
		n = len(l.mine)
	}
	for ; ; n++ {
		if key := slot(at, lease, n); q.byKey[key] == nil && !q.spent[key] {
			return key
		}
	}
}

// isCrowded reports whether a line probably has other contenders.
func (q *queues) isCrowded(at string) bool { return q.crowded[at] || q.before[at] }

// join makes c a contender of its line.
func (q *queues) join(c *contender) {
	l := q.lines[c.line]
	if l == nil {
		l = &line{}
		l.restart(q.highest) // an answer to an earlier contender may still be on its way
		q.lines[c.line] = l
	}
	l.join(c.key, q.highest)
	q.byKey[c.key] = c
}

// stepOut removes c from its line; its key stays known as ours.
func (q *queues) stepOut(c *contender) {
	if l := q.lines[c.line]; l != nil && q.byKey[c.key] == c && l.leave(c.key) {
		delete(q.lines, c.line)
	}
}

// leave undoes join.
func (q *queues) leave(c *contender) {
	q.stepOut(c)
	if q.byKey[c.key] == c {
		delete(q.byKey, c.key)
		if c.pending > 0 {
			q.spent[c.key] = true
		}
	}
}

// placeOf parses a contender for the line. The value that a contender of ours wrote
// needs no decoding.
func (q *queues) placeOf(kv *mvccpb.KeyValue) place {
	if c := q.byKey[string(kv.Key)]; c != nil && len(c.sent.value) > 0 && bytes.Equal(c.sent.value, kv.Value) {
		return place{key: c.key, created: kv.CreateRevision, base: c.sent.base, owner: c.owner, lease: clientv3.LeaseID(kv.Lease)}
	}
	return placeOf(kv)
}

func (q *queues) placesOf(kvs []*mvccpb.KeyValue) []place {
	places := make([]place, len(kvs))
	for i, kv := range kvs {
		places[i] = q.placeOf(kv)
	}
	return places
}

// list passes a line its snapshot.
func (q *queues) list(at string, rev int64, places []place) {
	if l := q.lines[at]; l != nil {
		q.perform(l.list(rev, places))
	}
}

// unlisted reports whether a line needs a snapshot to show a write at rev. It has received
// deletions after rev, so the snapshot of rev is too old, and the watch may not report the
// write.
func (q *queues) unlisted(at string, rev int64) bool {
	l := q.lines[at]
	if l != nil && l.listed > 0 && rev < l.seen {
		l.restart(rev)
	}
	return l != nil && l.listed == 0
}

// holder returns the owner that holds a line, as far as known.
func (q *queues) holder(at string) string {
	if l := q.lines[at]; l != nil && len(l.places) > 0 {
		return l.places[0].owner
	}
	return ""
}

// perform passes effects to their contenders.
func (q *queues) perform(effects []effect) {
	for _, e := range effects {
		c := q.byKey[e.key]
		switch {
		case c == nil || q.ended:
		case e.kind == granted:
			c.win(e)
		case e.kind == placed:
			c.queue(e)
		case e.kind == vanished:
			c.keyDeleted()
		}
	}
}

// inherit takes over, for the next heartbeats, the keys left by a release, perhaps
// one of an earlier session.
func (q *queues) inherit(c *contender) {
	for _, key := range c.keys() {
		q.deleting[key], q.spent[key] = c, true
	}
}
