// Package outbox implements the transactional outbox: messages are committed together with the
// data that they describe, and a relay sends them.
//
// Not promised:
//
//   - Exactly-once delivery. After a lost answer or a crash a message is sent again with the
//     same id; receivers deduplicate by that (package guard/once).
//   - Order between keys, or of messages that were not added by [Table.Add].
//   - Delivery while no relay runs.
//
// A message is added in the transaction that it describes, and sent by a relay:
//
//	err := outbox.Tx(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
//		// write the order here; its message is in the same transaction
//		return box.Add(ctx, postgres.Tx(tx), outbox.Message{Topic: "orders", Key: "order/42", Payload: created})
//	})
//	...
//	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", box, sink, nil)
//	defer relay.Close(ctx)
//
// # Order
//
// Messages of one topic and key are delivered in the order in which their transactions committed;
// within a transaction, in the order of the Add calls. The first delivery of each id counts.
// Transactions that add to one key wait for each other. If two transactions add to several keys in
// different orders, they can deadlock; the database ends one of them, which is Retryable. Messages
// without a key take no lock and have no order.
//
// A message that cannot be delivered blocks its key and nothing else. If it becomes a dead
// letter, [Options.AfterDeadLetter] decides whether its key continues.
//
// # Slices
//
// Keys are spread over a number of slices, which [SetSlices] changes. One relay at a time serves a
// slice, under a claim. DESIGN.md explains why no message is lost and no order is broken.
//
// # Databases
//
// PostgreSQL and MariaDB. Order needs a single server that accepts writes: nodes of a Galera
// cluster assign ids independently.
package outbox
