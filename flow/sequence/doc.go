// Package sequence delivers the events of each key in the order in which their
// producer numbered them, and says so when one is missing. It does not order events
// that nobody numbered, does not make a handler's effect outside the store happen
// once, and cannot tell that the last event of a key is missing before a later one
// comes. It believes the producer: a number that is far too high makes a hole of all
// that is still to come. A log's offsets are no numbers for it: they have legal gaps.
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
// From a topic of Kafka, or subjects of JetStream, a [Source] does the last part:
//
//	topics, err := kafka.OpenQueue("kafka://127.0.0.1:9092", nil)
//	…
//	source, err := s.Consume(ctx, topics, "orders", func(m driver.Received) (sequence.Event, error) {
//		var o order
//		err := json.Unmarshal(m.Payload, &o)
//		return sequence.Event{Key: m.Key, Position: sequence.Position{Seq: o.Number}, Payload: m.Payload}, err
//	}, nil)
//
// # What is promised
//
// Of a key, an event is delivered right after the one before it. If that is missing
// the event is held, in memory, and not to be acknowledged; events that come again
// are dropped. After Options.Wait (5 s) the source is asked, if there is one; what is
// still missing then is reported as overdue, recorded as a [Hole], and passed over; or
// the key is halted. No event behind a hole is delivered before the hole is durable,
// and a key whose hole cannot be recorded stands still until it can. A late event of
// a hole closes its place there and is delivered, marked Late: what came after it
// was delivered before, so it must pass a guard that compares versions.
//
// Delivery is at least once. The position of a key moves in one step with the
// handler: with [InTx] in one transaction, so that what the handler does there
// happens exactly once, over crashes and with several processes. For effects
// elsewhere a version or once guard has to drop the repetition.
//
// # Epochs
//
// A producer that begins again raises the epoch and counts from 1. An event of a
// higher epoch waits, like any other, for what is known to be missing of the epoch
// before, and is followed by nothing of it: what comes of an epoch that has passed is
// [Stale] and dropped, unless it closes a hole. So a producer must have handed over
// all of an epoch before the next one's first event, or send whole states.
//
// # Bounds
//
// At most Options.Buffer events of a key are held, Options.Bytes in all and Options.Gaps
// keys; what would go beyond is refused with a [*FullError], for the source to pause
// and offer again. Nothing is dropped in silence. The missing event itself is never
// refused for want of room.
package sequence
