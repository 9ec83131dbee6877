// Package queue consumes the messages of a queue in any number of processes: one at a time and in
// order per key, concurrently across keys. Delivery is at least once: after a crash or a lost
// answer a message is delivered again with the same id. Effects happen once if the handler makes
// them in the database of the queue ([InTx]), or if they pass a guard (guard/once, guard/fence).
//
//	c, err := queue.Open(ctx, "postgres://127.0.0.1/shop", "orders", queue.Table{},
//		func(ctx context.Context, m queue.Received) error {
//			return ship(ctx, m.Payload, m.Claim.Token())
//		}, nil)
//	…
//	defer c.Close(ctx)
//
// # Claims
//
// Every delivery has a claim, m.Claim, whose context is that of the handler. It ends when another
// consumer may get the message. Its token rises with each assignment of a key, so a guard
// (guard/fence) rejects a consumer that was paused too long.
//
// # Outcomes
//
// If the handler returns nil, the message is done. [Retry], [Dead] and [Park] return errors that
// choose the outcome. Any other error is a failure, for which [Options.Failing] decides. While a
// message waits for its next attempt, its key waits in the queue. It occupies no goroutine, and
// other keys continue. If an error is interlock.ErrHeld, because a lock is held, the message is
// retried without counting a failure.
//
// # Bounds
//
// Messages in flight are bounded by number and by bytes. At a bound the consumer fetches no more
// and keeps renewing its leases. DESIGN.md follows one message.
package queue
