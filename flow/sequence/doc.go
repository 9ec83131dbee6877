// Package sequence delivers the events of each key in the order of their producer's numbers, and
// reports gaps.
//
// Not promised:
//
//   - Order of events without numbers. The offsets of a log are unsuitable as numbers: they
//     have legal gaps.
//   - Exactly-once effects outside of the store.
//   - Detection of a missing last event before a later one arrives.
//   - Protection from a wrong producer: a number that is far too high makes a hole of all
//     numbers below it.
//
// Events of any origin are offered:
//
//	order := sequence.InTx(postgres.Pool(pool), sequence.Table{})
//	s, err := sequence.New("orders", order, func(ctx context.Context, tx pgx.Tx, d sequence.Delivery) error {
//		stamp := version.Stamp{Version: d.Epoch<<40 | d.Seq} // d may be late
//		outcome, err := version.Table{}.Apply(ctx, postgres.Tx(tx), version.Change{Entity: d.Key, Stamp: stamp})
//		… // apply it if outcome is version.Applied
//	}, nil)
//	…
//	outcome, err := s.Offer(ctx, sequence.Event{Key: "order/7", Position: sequence.Position{Seq: 3}, Payload: body})
//	if outcome.Durable() {
//		// acknowledge
//	}
//
// A [Source] consumes a topic of Kafka or subjects of JetStream and acknowledges by itself:
//
//	topics, err := kafka.OpenQueue("kafka://127.0.0.1:9092", nil)
//	…
//	source, err := s.Consume(ctx, topics, "orders", func(m driver.Received) (sequence.Event, error) {
//		var o order
//		err := json.Unmarshal(m.Payload, &o)
//		return sequence.Event{Key: m.Key, Position: sequence.Position{Seq: o.Number}, Payload: m.Payload}, err
//	}, nil)
//
// # Promises
//
// An event is delivered directly after its predecessor. If the predecessor is missing, the event
// is held in memory and must not be acknowledged. Repeated events are dropped. After
// [Options.Wait] (5 s) the sequencer asks the source, if there is one. Events that are still
// missing are then reported, recorded as a [Hole] and passed over, or the key is halted. No event
// after a hole is delivered before the hole is durable; a key whose hole cannot be recorded stops
// until it can. A late event of a hole closes its place and is delivered, marked Late. Events
// after it were delivered before, so it must pass a guard that compares versions.
//
// Delivery is at least once. The position of a key advances in one step with the handler. With
// [InTx] that is one transaction, so the handler's effects there happen exactly once, over
// crashes and with several processes. For effects elsewhere use a version or once guard.
//
// # Epochs
//
// A producer that starts over increases the epoch and counts from 1. An event of a higher epoch
// waits, like any other, for the missing events that are known of the epoch before. Afterwards
// events of the former epoch are Stale and dropped, unless they close a hole. So a producer must
// send all events of an epoch before the first of the next one, or complete states.
//
// # Bounds
//
// At most [Options.Buffer] events of a key, [Options.Bytes] in total and [Options.Gaps] keys are
// held. Events beyond that are rejected with a [*FullError]: pause the source and offer them
// again. The missing event itself is never rejected for lack of room.
package sequence
