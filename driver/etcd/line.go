package etcd

import (
	"cmp"
	"slices"

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
	kind    effectKind
	key     string
	created int64            // for granted
	base    int64            // for granted
	owner   string           // for granted
	lease   clientv3.LeaseID // for granted
	ahead   int              // for placed: waiters before it, the holder not counted
	holder  string           // for placed
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
	return effect{kind: vanished, key: s.key}
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
		return append(effects, effect{kind: granted, key: p.key, created: p.created, base: p.base, owner: p.owner, lease: p.lease})
	case i > 0 && (fresh || s.ahead != i-1 || s.holder != holder):
		s.ahead, s.holder = i-1, holder
		return append(effects, effect{kind: placed, key: p.key, ahead: i - 1, holder: holder})
	}
	return effects
}
