package history

import "iter"

// RuleCapacity: the amount taken never exceeds the capacity, and no more is given back than
// was taken.
const RuleCapacity Rule = "capacity"

// CheckCapacity finds overselling: of seats, stock or rooms, or of doctors off call when
// one must stay. It takes one pass, and memory for each key.
//
// A State with [OpCapacity] sets the capacity of a key, before its calls; a later one applies to
// later takes. A key without one is not checked. A process that takes units records an [OpTake] of Amount: OK if
// it got them, Reject if there were too few. A process that returns units records an [OpGive].
// The units are definitely held from the end of the take to the beginning of the give. The
// history has the takes of all units that are given back: more would hide an oversale.
//
// It does not check overlapping calls. If two processes take the last unit, and the first has
// begun to return it, they may have held it one after the other. A return that is repeated after
// an unknown outcome is one OpGive: two would hide an oversale. It does not check rejections:
// look at the counts. A process that sees an expired hold returns its units; it must record the
// OpGive no later than the earliest possible expiry.
func CheckCapacity(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	return walk(events, &v, &capacity{found: &v.Findings, keys: map[string]*supply{}}, OpTake, OpGive)
}

type capacity struct {
	found *Findings
	keys  map[string]*supply
}

// A supply is the known state of one key. held counts units that are definitely held, taken
// those that may have been taken, and given those that were given back.
type supply struct {
	stated                   bool
	size, held, taken, given int64
	at                       Ref // the State that set size
}

func (c *capacity) began(call Event) struct{} {
	if s := entry(c.keys, call.Key); call.Op == OpGive {
		s.held -= call.Amount
	} else {
		s.taken += call.Amount
	}
	return struct{}{}
}

func (c *capacity) ended(call, end Event, _ struct{}) {
	s, undone := entry(c.keys, call.Key), end.Kind == Fail || end.Kind == Reject
	switch {
	case call.Op == OpTake && end.Kind == OK:
		s.held += call.Amount
		c.judge(s, call.Key, refOf(end))
	case call.Op == OpTake && undone:
		s.taken -= call.Amount
	case call.Op == OpGive && end.Kind == OK:
		if s.given += call.Amount; s.stated && s.given > s.taken {
			c.found.add(RuleCapacity, call.Key, s.at, refOf(end), "%d of %q were given back (%v), of %d that were taken", s.given, call.Key, refOf(end), s.taken)
		}
	case call.Op == OpGive && undone:
		s.held += call.Amount // the units were never returned
		c.judge(s, call.Key, refOf(end))
	}
}

func (c *capacity) stated(e Event) {
	if e.Op == OpCapacity {
		s := entry(c.keys, e.Key)
		first := !s.stated
		s.stated, s.size, s.at = true, e.Amount, refOf(e)
		if first {
			c.judge(s, e.Key, s.at)
		}
	}
}

func (c *capacity) judge(s *supply, key string, at Ref) {
	if s.stated && s.held > s.size {
		c.found.add(RuleCapacity, key, s.at, at, "%d of %q were held (%v), of which there are %d (%v)", s.held, key, at, s.size, s.at)
	}
}

func (c *capacity) finished() {}
