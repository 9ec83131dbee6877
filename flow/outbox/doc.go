// Package outbox sends messages that were committed together with the data they
// tell of. It does not send them once: after a lost answer or a crash a message is
// sent again, with the same id, and receivers that must not act twice tell by that
// (package guard/once). It puts messages of different keys in no order, and orders
// nothing that did not come by [Table.Add]. It delivers nothing while no relay runs.
//
//	err := outbox.Tx(ctx, postgres.Pool(pool), notifier, func(ctx context.Context, tx pgx.Tx) error {
//		// write the order, then say so, in the same transaction
//		return box.Add(ctx, postgres.Tx(tx), outbox.Message{Topic: "orders", Key: "order/42", Payload: created})
//	})
//	...
//	relay, err := outbox.NewRelay(postgres.Pool(pool), box, sink, &outbox.Options{Notifier: notifier})
//	err = locks.Keep(ctx, "outbox", relay.RunAll) // or a slice for each partition of claim/partition: relay.RunOf
//
// # Order
//
// Messages of one topic and key are delivered in the order in which the
// transactions that added them were committed, and inside a transaction in the
// order in which they were added; what counts is the first delivery of each id. To
// that end Add locks the topic and key until the transaction ends: who adds to a
// key waits for who did before. Two transactions that add to several keys, by
// several calls and in different orders, can wait for each other; the database then
// ends one, which is Retryable. Messages without a key take no lock and have no
// order.
//
// A message that cannot be delivered makes its key wait, and nothing else. If it
// becomes a dead letter, [Options].AfterDeadLetter says whether its key goes on.
//
// # Slices
//
// Keys are spread over a number of slices, which [SetSlices] changes. A slice is served under a claim,
// by one relay at a time as far as the claim reaches: what a relay deletes, it
// deletes in a transaction that has entered the slice under its token (package
// guard/fence), so a relay that was overtaken deletes nothing. DESIGN.md beside
// this file tells why no message is lost and no order broken meanwhile.
//
// # Databases
//
// PostgreSQL and MariaDB are spoken. On MariaDB a keyed Add takes a statement more
// (it locks a row for each key, of 262144 that all keys share), and order
// needs one server that writes: nodes of a Galera cluster draw ids of their own.
package outbox
