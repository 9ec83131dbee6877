package history

import "iter"

// RuleTotal: a read total is the total before the run, plus all additions before the
// read, plus any of the additions that may have happened meanwhile.
const RuleTotal Rule = "total"

// CheckUpdates finds lost and doubled updates of numbers: counters, balances, sums of
// entries. It takes one pass, and memory for each key and each open call.
//
// Record each change of a number as an [OpAdd] of Amount (negative to subtract). Record each
// read as an [OpRead] that ends with the total as Amount. A State with [OpTotal] before the first
// call and State of its key is the number before the run, which is 0 without one. A later one is
// a read at that instant.
//
// A read is judged by bounds. So it does not detect changes that cancel each other
// out, or that an unknown outcome may explain. Let workers add amounts of one sign,
// and read once at the end after all answers.
func CheckUpdates(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	return walk(events, &v, &updates{found: &v.Findings, keys: map[string]*number{}}, OpAdd, OpRead)
}

type updates struct {
	found *Findings
	keys  map[string]*number
}

// A number is the known state of one key's total.
type number struct {
	known bool   // there was a call or a State
	last  Ref    // the last event that changed done
	done  bounds // definite additions: the total before the run, and each addition, in one of them
	maybe bounds // possible additions: open, or unknown
}

// bounds are the sums of the amounts that lower and that raise a total.
type bounds struct{ down, up int64 }

func (b *bounds) add(amount int64) {
	b.down += min(0, amount)
	b.up += max(0, amount)
}

func (b *bounds) remove(amount int64) {
	b.down -= min(0, amount)
	b.up -= max(0, amount)
}

// began returns the definite additions by then.
func (u *updates) began(call Event) bounds {
	n := entry(u.keys, call.Key)
	n.known = true
	if call.Op == OpAdd {
		n.maybe.add(call.Amount)
	}
	return n.done
}

func (u *updates) ended(call, end Event, before bounds) {
	n := entry(u.keys, call.Key)
	switch {
	case call.Op == OpRead && end.Kind == OK:
		u.read(n, end, call, before)
	case call.Op == OpRead || end.Kind == Info:
	default:
		n.maybe.remove(call.Amount)
		if end.Kind == OK {
			n.done.add(call.Amount)
			n.last = refOf(end)
		}
	}
}

func (u *updates) stated(e Event) {
	if e.Op != OpTotal {
		return
	}
	n := entry(u.keys, e.Key)
	if !n.known {
		n.known, n.last = true, refOf(e)
		n.done.add(e.Amount)
		return
	}
	u.read(n, e, e, n.done)
}

// read judges a total that was read after all additions in before. It may include
// any later ones.
func (u *updates) read(n *number, e, call Event, before bounds) {
	low := before.up + n.done.down + n.maybe.down
	high := before.down + n.done.up + n.maybe.up
	if e.Amount < low || e.Amount > high {
		u.found.add(RuleTotal, call.Key, n.last, refOf(e), "%q was %d (%v), though by what had been done (%v) it was between %d and %d",
			call.Key, e.Amount, refOf(e), n.last, low, high)
	}
}

func (u *updates) finished() {}
