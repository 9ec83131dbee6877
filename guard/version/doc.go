// Package version prevents old states from overwriting newer ones, in whatever order and
// however often they arrive. It does not order events, does not detect missing ones, and
// protects nothing that is written without it. Its promise: once a state of an entity was
// applied and committed, no older one is, unless it sets TerminalWins.
//
// Each state has a [Stamp], issued by its producer: a version and, if several producers may
// issue the same one, the producer's id. In SQL the guard is part of the consumer's own
// transaction, before it reads:
//
//	seen := version.Table{}
//	tx, err := pool.Begin(ctx)
//	…
//	outcome, err := seen.Apply(ctx, postgres.Tx(tx), version.Change{Entity: "order/42", Stamp: event.Stamp})
//	if err == nil && outcome == version.Applied {
//		_, err = tx.Exec(ctx, `update orders set status = $1 where id = 42`, event.Status)
//	}
//	… // commit, or roll back if there is an error; then acknowledge the event
//
// [Table] stores stamps in a table of their own, so that they exist before the entity's row and
// after its deletion. [Column] stores them in the row that they protect. [Store] stores states
// and their stamps in Redis or etcd.
//
// # Outcomes
//
// An old, repeated or late state is no error. It is [Stale], [Duplicate] or [Terminal]: the
// consumer does nothing and acknowledges it.
//
// Of two states the one with the greater version is newer, and of equal versions the one with
// the greater [Stamp] Tie, byte by byte. Two states with the same stamp are the same state:
// the first stays.
//
// A state may be declared terminal, such as a cancellation. No other state replaces it: an
// older one is Stale, and a newer one is Terminal, which means that a producer continues with
// an ended entity. A terminal state that is older than the stored one is Stale. If versions
// come from the clocks of several producers, the order of arrival then decides whether an order
// is cancelled. TerminalWins lets the terminal state replace a newer one that is not terminal.
// Of two terminal states the first to arrive stays.
//
// # Optimistic updates
//
// A program that reads a state, computes the next one and writes it must not overwrite a state
// that it has not read. [Update] ensures that for rows with a version column, [Store.Update]
// for a Store, and [Tx] for a transaction of any kind. They write only if the state that they
// read is still stored, and otherwise retry, a few times and after a random delay. If the
// conflict persists, they return a [ConflictError] or hand the update off. Hooks, or [Stats],
// report the conflict rate: above a few percent, a lock or a queue per entity is the better
// tool.
//
// # Clocks
//
// Versions that are bare wall clock times go back with the clock, and an event can lose to one
// that happened before it. [Clock] is a hybrid logical clock: what one producer saw of another
// is always older than what it does next.
//
// # Wrong stamps
//
// A guard cannot know which versions are plausible. A producer that sends the greatest version
// by mistake blocks every later state. If versions are times of a Clock, Observe refuses such a
// stamp before it is applied. Otherwise an operator must correct the stored stamp by hand.
package version
