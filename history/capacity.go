package history

import "iter"

// RuleCapacity: the amount taken never exceeds the capacity.
const RuleCapacity Rule = "capacity"

// CheckCapacity finds overselling: of seats, stock or rooms, or of doctors off call when
// one must stay. It takes one pass, and memory for each key.
//
// A State with [OpCapacity] sets the capacity of a key; a later one applies from then on. A key
// without one is not checked. A process that takes units records an [OpTake] of Amount: OK if
// it got them, Reject if there were too few. A process that returns units records an [OpGive].
// The units are definitely held from the end of the take to the beginning of the give.
//
// It does not check overlapping calls. If two processes take the last unit, and the first has
// begun to return it, they may have held it one after the other. It does not check rejections:
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

// A supply is the known state of one key. held counts units that are definitely held.
type supply struct {
	stated     bool
	size, held int64
	at         Ref // the State that set size
}

func (c *capacity) began(call Event) struct{} {
	if call.Op == OpGive {
		entry(c.keys, call.Key).held -= call.Amount
	}
	return struct{}{}
}

func (c *capacity) ended(call, end Event, _ struct{}) {
	s := entry(c.keys, call.Key)
	switch {
	case call.Op == OpTake && end.Kind == OK:
		s.held += call.Amount
		c.judge(s, call.Key, refOf(end))
	case call.Op == OpGive && (end.Kind == Fail || end.Kind == Reject):
		s.held += call.Amount // the units were never returned
		c.judge(s, call.Key, refOf(end))
	}
}

func (c *capacity) stated(e Event) {
	if e.Op == OpCapacity {
		s := entry(c.keys, e.Key)
		s.stated, s.size, s.at = true, e.Amount, refOf(e)
	}
}

func (c *capacity) judge(s *supply, key string, at Ref) {
	if s.stated && s.held > s.size {
		c.found.add(RuleCapacity, key, s.at, at, "%d of %q were held (%v), of which there are %d (%v)", s.held, key, at, s.size, s.at)
	}
}

func (c *capacity) finished() {}
