package history

import "iter"

// The rules of [CheckDeliveries].
const (
	// RuleDelivered: a message that was acknowledged before a drain began is delivered when the
	// drain ends.
	RuleDelivered Rule = "delivered"
	// RuleKeyOrder: the first deliveries of the messages of one key are in the order of their
	// publishing.
	RuleKeyOrder Rule = "key order"
	// RuleOrigin: what is delivered, or takes place, or is read, was asked for,
	// and not certainly without success.
	RuleOrigin Rule = "origin"
)

// CheckDeliveries judges an at-least-once channel: nothing that was acknowledged
// is lost, order is kept for each key, and nothing comes out of nothing. It
// takes one pass, and memory for each message.
//
// A message is an ID, whatever its deliveries are, and only its first delivery
// is judged for order; a message without a Key is in no order. One publish comes
// before another if it had returned OK before the other was invoked. A delivery
// is recorded where it takes effect, not where a consumer picks it up.
//
// It does not see a loss that no [OpDrain] asks about, nor an order broken by a
// delivery that overlaps the one which it overtakes, or by one that fails later.
// That a message is delivered twice is no violation: see [CheckEffects].
func CheckDeliveries(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	d := &deliveries{found: &v.Findings, byID: map[string]*message{}, keys: map[string][]*message{}}
	return walk(events, &v, d, OpPublish, OpDeliver, OpDrain)
}

type deliveries struct {
	found   *Findings
	byID    map[string]*message
	seen    []*message            // in the order in which they came up
	keys    map[string][]*message // acknowledged, and maybe not delivered, in order
	waiting []*message            // acknowledged, and not yet drained, in order
	acked   int                   // how many were acknowledged so far
}

// A message is one ID. asked and tried count publishes and deliveries of it that
// may have been done.
type message struct {
	id, key      string
	floor        int // how many had been acknowledged when it was first published
	place        int // its own place among them, from 1; 0 if it is not
	asked, tried int

	published, acked, delivered Ref // the first time; zero for never
}

func (d *deliveries) message(id string) *message {
	m := d.byID[id]
	if m == nil {
		m = &message{id: id}
		d.byID[id] = m
		d.seen = append(d.seen, m)
	}
	return m
}

// began returns how many messages were acknowledged by then.
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

// delivered judges the first delivery of m by the oldest message that waits.
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

// drained judges what was acknowledged before the drain; each message once.
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
