package history

import "iter"

// The rules of [CheckEffects], beside [RuleOrigin].
const (
	// RuleOnce: no effect happens twice.
	RuleOnce Rule = "once"
	// RuleEffect: each acknowledged effect happens.
	RuleEffect Rule = "effect"
)

// CheckEffects judges how often each effect happens: exactly once if it was acknowledged, at
// most once if its outcome is unknown, never if it definitely failed. It takes one pass, and
// memory for each effect.
//
// A client records an [OpAsk] for each request of an effect, with the same ID. The effect itself
// is an [OpEffect] of that ID, recorded where it happens; or it is a State for each one in the
// store at the end. An effect without a request in the history is judged by [RuleOnce] only.
//
// It does not check whether the effect is correct, nor when it happens: it may happen
// until the end of the history.
func CheckEffects(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	c := &effects{found: &v.Findings, byID: map[string]*effect{}}
	return walk(events, &v, c, OpAsk, OpEffect)
}

type effects struct {
	found *Findings
	byID  map[string]*effect
	order []*effect
}

// An effect is one ID. asked and unsure count calls that may have been done.
type effect struct {
	id            string
	request       Ref // the first; zero if there was none
	acked         Ref
	seen          Ref // the first time that it happened
	asked, unsure int
}

func (c *effects) effect(id string) *effect {
	e := entry(c.byID, id)
	if len(c.order) < len(c.byID) {
		e.id, c.order = id, append(c.order, e)
	}
	return e
}

func (c *effects) began(call Event) struct{} {
	if call.Op == OpAsk {
		e := c.effect(call.ID)
		e.asked++
		if e.request == (Ref{}) {
			e.request = refOf(call)
		}
	}
	return struct{}{}
}

func (c *effects) ended(call, end Event, _ struct{}) {
	e, undone := c.effect(call.ID), end.Kind == Fail || end.Kind == Reject
	switch {
	case call.Op == OpEffect && end.Kind == OK:
		c.happened(e, refOf(end))
	case call.Op == OpEffect && end.Kind == Info:
		e.unsure++
	case call.Op == OpAsk && undone:
		e.asked--
	case call.Op == OpAsk && end.Kind == OK && e.acked == Ref{}:
		e.acked = refOf(end)
	}
}

func (c *effects) stated(e Event) {
	if e.Op == OpEffect {
		c.happened(c.effect(e.ID), refOf(e))
	}
}

func (c *effects) happened(e *effect, at Ref) {
	if e.seen == (Ref{}) {
		e.seen = at
		return
	}
	c.found.add(RuleOnce, e.id, e.seen, at, "effect %q took place (%v), and again (%v)", e.id, e.seen, at)
}

func (c *effects) finished() {
	for _, e := range c.order {
		took := e.seen != Ref{}
		switch {
		case e.acked != (Ref{}) && !took && e.unsure == 0:
			c.found.add(RuleEffect, e.id, e.request, e.acked, "effect %q was acknowledged (%v), and never took place", e.id, e.acked)
		case took && e.request != (Ref{}) && e.asked == 0:
			c.found.add(RuleOrigin, e.id, e.request, e.seen, "effect %q took place (%v), though all who asked for it certainly failed (%v)", e.id, e.seen, e.request)
		}
	}
}
