package etcd

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// queues are the lines of a session that have a contender of ours, and the keys under
// its lease. It does no I/O. The driver's mutex is held in all methods.
type queues struct {
	nudge func() // asks for the doomed keys to be deleted

	ended  bool // contenders hear of nothing more
	lines  map[string]*line
	byKey  map[string]*contender
	doomed map[string]*contender // keys of ours to be deleted, and whose failed release waits for it
	buried map[string]int64      // keys known to be deleted at this revision

	highest int64 // highest revision heard of
}

func newQueues(highest int64, nudge func()) queues {
	return queues{nudge: nudge, lines: map[string]*line{}, byKey: map[string]*contender{},
		doomed: map[string]*contender{}, buried: map[string]int64{}, highest: highest}
}

// restart has every line read again, at rev or later.
func (q *queues) restart(rev int64) {
	for _, l := range q.lines {
		l.restart(rev)
	}
}

// heard notes that the watch has reported everything up to rev.
func (q *queues) heard(rev int64) {
	for key, at := range q.buried {
		if at <= rev {
			delete(q.buried, key)
		}
	}
}

// age counts how long lines have needed a snapshot. At the first heartbeat the
// answer that brings it is probably on its way.
func (q *queues) age() {
	for _, l := range q.lines {
		if l.listed == 0 {
			l.beats++
		}
	}
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

// toDelete lists up to most of the doomed keys.
func (q *queues) toDelete(most int) (keys []string) {
	for key := range q.doomed {
		if len(keys) < most {
			keys = append(keys, key)
		}
	}
	return keys
}

// removed notes that keys of ours were deleted at rev. It returns the contenders whose
// release waited for the last of them, and is over.
func (q *queues) removed(rev int64, keys ...string) (over []*contender) {
	for _, key := range keys {
		c := q.doomed[key]
		delete(q.doomed, key)
		q.buried[key] = rev
		if c != nil && !slices.ContainsFunc(c.keys(), q.isDoomed) {
			over = append(over, c)
		}
	}
	return over
}

// leftovers lists up to most keys that a closing driver need not leave to time.
func (q *queues) leftovers(most int) (keys []string, held bool) {
	for key := range q.doomed {
		keys = append(keys, key)
	}
	for key, c := range q.byKey {
		held = held || c.told
		if !c.told {
			keys = append(keys, key)
		}
	}
	return keys[:min(len(keys), most)], held
}

// own looks at a key that was written under our lease. One that nobody here
// knows is the late arrival of a request that was given up: it would stand in
// line for as long as the session lives, so it is removed.
func (q *queues) own(key string, rev int64) {
	if q.byKey[key] == nil && rev > q.buried[key] {
		q.doom(key)
	}
}

// doom asks for a key to be deleted, now and until it is.
func (q *queues) doom(key string) {
	if !q.isDoomed(key) {
		q.doomed[key] = nil
	}
	q.nudge()
}

func (q *queues) isDoomed(key string) bool {
	_, yes := q.doomed[key]
	return yes
}

// join makes c a contender of its line.
func (q *queues) join(c *contender) {
	l := q.lines[c.line]
	if l == nil {
		l = newLine()
		l.restart(q.highest) // an answer to somebody before us may still be on its way
		q.lines[c.line] = l
	}
	if rev, gone := q.buried[c.key]; gone {
		l.restart(rev) // what was deleted must not be taken for what is asked for now
	}
	l.join(c.key)
	q.byKey[c.key] = c
	delete(q.doomed, c.key)
}

// stepOut takes c out of its line; its key is still known as ours.
func (q *queues) stepOut(c *contender) {
	if l := q.lines[c.line]; l != nil && q.byKey[c.key] == c && l.leave(c.key) {
		delete(q.lines, c.line)
	}
}

// leave is the opposite of join.
func (q *queues) leave(c *contender) {
	q.stepOut(c)
	if q.byKey[c.key] == c {
		delete(q.byKey, c.key)
	}
}

// placeOf reads a contender for the line. The value that a contender of ours wrote
// needs no decoding.
func (q *queues) placeOf(kv *mvccpb.KeyValue) place {
	if c := q.byKey[string(kv.Key)]; c != nil && c.sent.value != "" && c.sent.value == string(kv.Value) {
		return place{key: c.key, created: kv.CreateRevision, base: c.sent.base, owner: c.owner}
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

// list gives a line its snapshot.
func (q *queues) list(at string, rev int64, places []place) {
	if l := q.lines[at]; l != nil {
		q.perform(l.list(rev, places))
	}
}

// unlisted reports that a line needs a snapshot.
func (q *queues) unlisted(at string) bool {
	l := q.lines[at]
	return l != nil && l.listed == 0
}

// holder is who holds a line, as far as it is known.
func (q *queues) holder(at string) string {
	if l := q.lines[at]; l != nil && len(l.places) > 0 {
		return l.places[0].owner
	}
	return ""
}

// perform reports their new states to contenders.
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
			c.vanish()
		}
	}
}

// inherit takes over, for the next heartbeats, what a release left, perhaps one
// under an earlier session.
func (q *queues) inherit(c *contender) {
	for _, key := range c.keys() {
		q.doomed[key] = c
	}
}
