package etcd

import (
	"bytes"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

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

// leftovers returns up to most keys that a closing driver deletes.
func (q *queues) leftovers(most int) (keys []string, held bool) {
	for key := range q.deleting {
		keys = append(keys, key)
	}
	for key, c := range q.byKey {
		held = held || c.granted
		if !c.granted {
			keys = append(keys, key)
		}
	}
	return keys[:min(len(keys), most)], held
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
