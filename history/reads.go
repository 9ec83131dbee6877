package history

import "iter"

// CheckReads finds dirty reads: a value was read although all of its writes were rolled
// back, or none had begun ([RuleOrigin]). It takes one pass, and memory for each value.
//
// A transaction is one [OpWrite] of Value, which ends with Fail if it was rolled back.
// A read is an [OpRead] that ends with the Value; empty means that there was none. A
// State with [OpValue] before the first call of its key is a value before the run; a later one
// is a read at that instant. The values of a key must differ:
// otherwise one excuses the rollback of the other. CheckReads does not detect outdated
// values: see [CheckVersions].
func CheckReads(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	c := &reads{found: &v.Findings, byKey: map[datum]*written{}, called: map[string]bool{}}
	return walk(events, &v, c, OpWrite, OpRead)
}

type reads struct {
	found  *Findings
	byKey  map[datum]*written
	called map[string]bool // keys with a call
	read   []*written      // those that were read, each once
}

type datum struct{ key, value string }

// written is a value of one key. possible counts its writes that may have been done.
type written struct {
	datum
	possible    int
	write, read Ref // the first of each; zero for none
}

func (c *reads) of(key, value string) *written {
	d := datum{key, value}
	w := entry(c.byKey, d)
	w.datum = d
	return w
}

func (c *reads) began(call Event) struct{} {
	c.called[call.Key] = true
	if call.Op == OpWrite {
		c.written(call)
	}
	return struct{}{}
}

func (c *reads) stated(e Event) {
	switch {
	case e.Op != OpValue:
	case c.called[e.Key]:
		c.wasRead(e.Key, e.Value, refOf(e))
	default:
		c.written(e)
	}
}

func (c *reads) written(e Event) {
	w := c.of(e.Key, e.Value)
	w.possible++
	if w.write == (Ref{}) {
		w.write = refOf(e)
	}
}

func (c *reads) ended(call, end Event, _ struct{}) {
	switch {
	case call.Op == OpWrite && (end.Kind == Fail || end.Kind == Reject):
		c.of(call.Key, call.Value).possible--
	case call.Op == OpRead && end.Kind == OK:
		c.wasRead(call.Key, end.Value, refOf(end))
	}
}

func (c *reads) wasRead(key, value string, at Ref) {
	if value == "" {
		return
	}
	w := c.of(key, value)
	if w.write == (Ref{}) {
		c.found.add(RuleOrigin, w.key, at, at, "%q of %q was read (%v), which nobody had begun to write", w.value, w.key, at)
		return
	}
	if w.read == (Ref{}) {
		w.read = at
		c.read = append(c.read, w)
	}
}

func (c *reads) finished() {
	for _, w := range c.read {
		if w.possible == 0 {
			c.found.add(RuleOrigin, w.key, w.write, w.read, "%q of %q was read (%v), which was only ever written by what was rolled back (%v)",
				w.value, w.key, w.read, w.write)
		}
	}
}
