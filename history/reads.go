package history

import "iter"

// CheckReads finds dirty reads: a value that was read though all that wrote it
// were rolled back, or nobody had begun to write it ([RuleOrigin]). It takes one
// pass, and memory for each value.
//
// A transaction is one [OpWrite] of Value, which Fail ends if it was rolled back,
// and a read an [OpRead] that ends with the Value; an empty one says that nothing
// was there. A State with [OpValue] is a value that was there before the run.
// Values of a key are to be different, or a rollback of one is excused by the
// other. It does not see that a value is out of date: see [CheckVersions].
func CheckReads(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	c := &reads{found: &v.Findings, byKey: map[datum]*written{}}
	return walk(events, &v, c, OpWrite, OpRead)
}

type reads struct {
	found *Findings
	byKey map[datum]*written
	read  []*written // those that were read, once each
}

type datum struct{ key, value string }

// What was written under one key. possible counts the writes that may have been
// done.
type written struct {
	datum
	possible    int
	write, read Ref // the first of each; zero for none
}

func (c *reads) of(key, value string) *written {
	d := datum{key, value}
	w := c.byKey[d]
	if w == nil {
		w = &written{datum: d}
		c.byKey[d] = w
	}
	return w
}

func (c *reads) began(call Event) struct{} {
	if call.Op == OpWrite {
		c.written(call)
	}
	return struct{}{}
}

func (c *reads) stated(e Event) {
	if e.Op == OpValue {
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
	case call.Op == OpRead && end.Kind == OK && end.Value != "":
		c.wasRead(c.of(call.Key, end.Value), refOf(end))
	}
}

func (c *reads) wasRead(w *written, at Ref) {
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
