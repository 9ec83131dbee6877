// Package version keeps old news from overwriting newer ones, whatever the order
// and however often they come. It does not put events in order, finds none that
// is missing, and protects nothing that is written past it. What it gives: once
// a state of an entity was applied and committed, no older one is, unless it asks
// for that by TerminalWins.
//
// Each state has a [Stamp], given by its producer: a version and, if
// several producers may give the same one, the producer's id. In SQL the guard
// stands in the consumer's own transaction, before it reads:
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
// [Table] keeps stamps in a table of their own, so that they are known before the
// entity's row exists and after it was deleted. [Column] keeps them in the row
// that they protect. [Store] keeps states and their stamps in Redis or etcd.
//
// # Outcomes
//
// An old, repeated or late state is no error. It is [Stale], [Duplicate] or
// [Terminal]: the consumer does nothing and acknowledges it. That makes replays
// of a topic, resets of a consumer and retries out of a dead-letter queue
// harmless.
//
// Of two states the one with the greater version is newer, and of equal versions
// the one with the greater [Stamp] Tie, byte by byte: arbitrary, and the same for
// everybody. Two states with the same stamp are the same state: the first stays.
//
// A state may be declared terminal, such as a cancellation. No other replaces it:
// an older one is Stale as ever, a newer one is Terminal, which means that
// somebody goes on with what had ended. A terminal state that is older than the
// stored one is Stale like any other. Where versions come from the clocks of
// several producers, it then depends on the order of arrival whether an order is
// cancelled: TerminalWins lets the terminal state replace a newer one that is not
// terminal. Of two terminal states the first to arrive stays.
//
// # Optimistic updates
//
// A program that reads a state, computes the next one and writes it must not write over
// one that it has not read. [Update] does that for rows with a version column,
// [Store.Update] for a Store, and [Tx] for a transaction of any kind: they write
// only on top of what was read, and otherwise begin again, a few times and after
// a random pause. What is then still in conflict is a [ConflictError], or is
// handed off. Hooks, or [Stats], tell how often that happens: above a few
// percent, a lock or a queue per entity is the better tool.
//
// # Clocks
//
// Versions that are bare wall clock times go back with the clock, and an event
// can be lost to one that happened before it. [Clock] is a hybrid logical clock:
// what one producer saw of another is always older than what it does next.
//
// # What a stamp can spoil
//
// A guard cannot know which versions are plausible. A producer that sends the
// greatest version by mistake keeps out every state that is to come. Where
// versions are times of a Clock, Observe refuses such a stamp before it is
// applied; the way out otherwise is to correct the stored stamp by hand.
package version
