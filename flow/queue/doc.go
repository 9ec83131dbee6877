// Package queue handles the messages of a queue: those of one key one at a time and in order,
// those of different keys at the same time, in any number of processes. It handles a message at
// least once, not once: after a crash or a lost answer it is delivered again, with the same id.
// Effects happen once if the handler makes them in the database of the queue ([InTx]) or if they
// pass a guard (guard/once, guard/fence).
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
// Every delivery is made under a claim: m.Claim, whose context is that of the handler. It ends
// when another consumer may have the message. Its token rises with each assignment of a key, so
// that a guard (guard/fence) refuses a consumer that was paused too long.
//
// # Outcomes
//
// A handler that returns nil is done with the message. [Retry], [Dead] and [Park] make an error
// that says what to do; any other error is a failure, of which [Options].Failing decides. A key
// whose message waits to be tried again waits as a whole, in the queue: it occupies no
// goroutine, and other keys go on. An error that is interlock.ErrHeld, because a lock is taken,
// is tried again without counting as a failure.
//
// # Bounds
//
// Messages in flight are bounded by number and by bytes. If they are at the bound nothing more
// is fetched, while leases are renewed. DESIGN.md tells one message's way.
package queue
