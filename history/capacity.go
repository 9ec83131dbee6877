package history

import "iter"

// RuleCapacity: no more is taken at any time than there is.
const RuleCapacity Rule = "capacity"

// CheckCapacity finds what was sold twice: seats, stock, rooms, or doctors that
// are free to go while one has to stay. It takes one pass, and memory for each
// key.
//
// A State with [OpCapacity] says how much there is of a key; of a key without
// one, nothing is judged, and a later one counts from then on. Who takes records
// an [OpTake] of Amount, OK where it was had and Reject where there was not
// enough, and who gives back an [OpGive]. What was taken is certainly held from
// the end of the one to the beginning of the other.
//
// It does not see what overlaps: two who take the last piece, of whom the first
// has begun to give it back, may have had it one after the other. It does not
// judge refusals: look at the counts. A hold that expires is given back by
// the process that sees that it has; record the OpGive no later than that may happen.
func CheckCapacity(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	return walk(events, &v, &capacity{found: &v.Findings, keys: map[string]*supply{}}, OpTake, OpGive)
}

type capacity struct {
	found *Findings
	keys  map[string]*supply
}

// A supply is what is known of one key. held is what certainly is held.
type supply struct {
	stated     bool
	size, held int64
	at         Ref // where size was stated
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
		s.held += call.Amount // it had it all the time
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
