package history

import (
	"iter"
	"slices"
)

// The rules of [CheckDeliveries].
const (
	// RuleDelivered: a message that was acknowledged before a drain began is delivered by the
	// end of the drain.
	RuleDelivered Rule = "delivered"
	// RuleKeyOrder: the first deliveries of the messages of one key are in the order of
	// publication.
	RuleKeyOrder Rule = "key order"
	// RuleOrigin: a message that is delivered, an effect that happens, or a value that
	// is read has a cause: a call that did not definitely fail.
	RuleOrigin Rule = "origin"
)

// CheckDeliveries judges an at-least-once channel: no acknowledged message is lost,
// the order of each key is kept, and only published messages are delivered. It takes
// one pass, and memory for each message.
//
// Deliveries with one ID are one message, and only the first of them is judged for order. A
// message without a Key is in no order. One publish comes before another if it had returned OK
// before the other was invoked. Record a delivery where it takes effect, not where a consumer
// receives it.
//
// It does not detect a loss without an [OpDrain] after it. Nor does it detect an order
// broken by a delivery that overlaps one of the overtaken message, even if that fails. A
// message that is delivered twice is no violation: see [CheckEffects].
func CheckDeliveries(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	d := &deliveries{found: &v.Findings, byID: map[string]*message{}, keys: map[string]*lane{}}
	return walk(events, &v, d, OpPublish, OpDeliver, OpDrain)
}

type deliveries struct {
	found   *Findings
	byID    map[string]*message
	seen    []*message // in order of appearance
	keys    map[string]*lane
	waiting []*message // acknowledged, not yet drained, in order
	acked   int        // number of acknowledged messages so far
}

// A lane has the acknowledged messages of a key that are not delivered, in order. A delivery of
// each in begun has begun; of those in queue perhaps.
type lane struct{ begun, queue []*message }

// A message is one ID. asked and tried count its publishes and deliveries that may
// have been done, due those deliveries that began before it was drained.
type message struct {
	id, key           string
	floor             int // deliveries.acked when it was first published
	place             int // its place among acknowledged ones, from 1; 0 if it is not
	asked, tried, due int

	published, acked, delivered, drained Ref // the first time; zero for never
}

func (d *deliveries) message(id string) *message {
	m := entry(d.byID, id)
	if len(d.seen) < len(d.byID) {
		m.id, d.seen = id, append(d.seen, m)
	}
	return m
}

// began returns the number of messages acknowledged by then; for a delivery, the number by which
// it increased due.
func (d *deliveries) began(call Event) int {
	switch call.Op {
	case OpPublish:
		m := d.message(call.ID)
		m.asked++
		if m.published == (Ref{}) {
			m.key, m.published, m.floor = call.Key, refOf(call), d.acked
		}
	case OpDeliver:
		m := d.message(call.ID)
		m.tried++
		if m.drained != (Ref{}) {
			return 0
		}
		m.due++
		return 1
	}
	return d.acked
}

func (d *deliveries) ended(call, end Event, note int) {
	if call.Op == OpDrain {
		if end.Kind == OK {
			d.drained(end, note)
		}
		return
	}
	m, undone := d.message(call.ID), end.Kind == Fail || end.Kind == Reject
	switch {
	case call.Op == OpPublish && undone:
		m.asked--
	case call.Op == OpDeliver && undone:
		m.tried--
		if m.due -= note; note > 0 && m.due == 0 && m.drained != (Ref{}) {
			d.lost(m)
		}
	case end.Kind != OK:
	case call.Op == OpPublish && m.place == 0:
		d.acknowledged(m, end)
	case call.Op == OpDeliver && m.delivered == (Ref{}):
		m.delivered = refOf(end)
		d.delivered(m)
	}
}

func (d *deliveries) acknowledged(m *message, end Event) {
	d.acked++
	m.place, m.acked = d.acked, refOf(end)
	d.waiting = append(d.waiting, m)
	if m.key != "" {
		l := entry(d.keys, m.key)
		l.queue = append(l.queue, m)
	}
}

// delivered judges the first delivery of m against the oldest waiting message.
func (d *deliveries) delivered(m *message) {
	if m.published == (Ref{}) {
		d.found.add(RuleOrigin, m.key, m.delivered, m.delivered, "message %q was delivered (%v) before anybody published it", m.id, m.delivered)
		return
	}
	if o := entry(d.keys, m.key).oldest(); o != nil && o.place <= m.floor {
		d.found.add(RuleKeyOrder, m.key, o.acked, m.delivered,
			"message %q was delivered (%v) before message %q of the same key, which had been acknowledged (%v) before it was published (%v)",
			m.id, m.delivered, o.id, o.acked, m.published)
	}
}

// oldest returns the first message that was not delivered, or nil.
func (l *lane) oldest() *message {
	for len(l.queue) > 0 && l.queue[0].tried > 0 {
		l.begun, l.queue = append(l.begun, l.queue[0]), l.queue[1:]
	}
	l.begun = slices.DeleteFunc(l.begun, func(m *message) bool { return m.delivered != Ref{} })
	for _, m := range l.begun {
		if m.tried == 0 {
			return m
		}
	}
	if len(l.queue) > 0 {
		return l.queue[0]
	}
	return nil
}

// drained judges messages acknowledged before the drain, each once.
func (d *deliveries) drained(end Event, acked int) {
	for len(d.waiting) > 0 && d.waiting[0].place <= acked {
		m := d.waiting[0]
		d.waiting, m.drained = d.waiting[1:], refOf(end)
		if m.due == 0 {
			d.lost(m)
		}
	}
}

func (d *deliveries) lost(m *message) {
	d.found.add(RuleDelivered, m.key, m.acked, m.drained,
		"message %q was acknowledged (%v), and not delivered by the time when all was to be (%v)", m.id, m.acked, m.drained)
}

func (d *deliveries) stated(Event) {}

func (d *deliveries) finished() {
	for _, m := range d.seen {
		if m.asked == 0 && m.published != (Ref{}) && m.delivered != (Ref{}) {
			d.found.add(RuleOrigin, m.key, m.published, m.delivered,
				"message %q was delivered (%v), though all who published it (%v) certainly failed", m.id, m.delivered, m.published)
		}
	}
}
