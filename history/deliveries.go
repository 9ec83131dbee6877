package history

import "iter"

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
// broken by a delivery that overlaps the overtaken one, or by one that fails later. A
// message that is delivered twice is no violation: see [CheckEffects].
func CheckDeliveries(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	d := &deliveries{found: &v.Findings, byID: map[string]*message{}, keys: map[string][]*message{}}
	return walk(events, &v, d, OpPublish, OpDeliver, OpDrain)
}

type deliveries struct {
	found   *Findings
	byID    map[string]*message
	seen    []*message            // in order of appearance
	keys    map[string][]*message // acknowledged, perhaps not delivered, in order
	waiting []*message            // acknowledged, not yet drained, in order
	acked   int                   // number of acknowledged messages so far
}

// A message is one ID. asked and tried count its publishes and deliveries that may
// have been done.
type message struct {
	id, key      string
	floor        int // deliveries.acked when it was first published
	place        int // its place among acknowledged ones, from 1; 0 if it is not
	asked, tried int

	published, acked, delivered Ref // the first time; zero for never
}

func (d *deliveries) message(id string) *message {
	m := entry(d.byID, id)
	if len(d.seen) < len(d.byID) {
		m.id, d.seen = id, append(d.seen, m)
	}
	return m
}

// began returns the number of messages acknowledged by then.
func (d *deliveries) began(call Event) int {
	switch call.Op {
	case OpPublish:
		m := d.message(call.ID)
		m.asked++
		if m.published == (Ref{}) {
			m.key, m.published, m.floor = call.Key, refOf(call), d.acked
		}
	case OpDeliver:
		d.message(call.ID).tried++
	}
	return d.acked
}

func (d *deliveries) ended(call, end Event, acked int) {
	if call.Op == OpDrain {
		if end.Kind == OK {
			d.drained(end, acked)
		}
		return
	}
	m, undone := d.message(call.ID), end.Kind == Fail || end.Kind == Reject
	switch {
	case call.Op == OpPublish && undone:
		m.asked--
	case call.Op == OpDeliver && undone:
		m.tried--
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
		d.keys[m.key] = append(d.keys[m.key], m)
	}
}

// delivered judges the first delivery of m against the oldest waiting message.
func (d *deliveries) delivered(m *message) {
	if m.published == (Ref{}) {
		d.found.add(RuleOrigin, m.key, m.delivered, m.delivered, "message %q was delivered (%v) before anybody published it", m.id, m.delivered)
		return
	}
	queue := d.keys[m.key]
	for len(queue) > 0 && queue[0].tried > 0 {
		queue = queue[1:]
	}
	d.keys[m.key] = queue
	if len(queue) > 0 && queue[0].place <= m.floor {
		d.found.add(RuleKeyOrder, m.key, queue[0].acked, m.delivered,
			"message %q was delivered (%v) before message %q of the same key, which had been acknowledged (%v) before it was published (%v)",
			m.id, m.delivered, queue[0].id, queue[0].acked, m.published)
	}
}

// drained judges messages acknowledged before the drain, each once.
func (d *deliveries) drained(end Event, acked int) {
	for len(d.waiting) > 0 && d.waiting[0].place <= acked {
		if m := d.waiting[0]; m.tried == 0 {
			d.found.add(RuleDelivered, m.key, m.acked, refOf(end),
				"message %q was acknowledged (%v), and not delivered by the time when all was to be (%v)", m.id, m.acked, refOf(end))
		}
		d.waiting = d.waiting[1:]
	}
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
