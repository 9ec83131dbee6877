// Package tcc books at several participants, at all of them or at none: each branch is
// tried, which only holds what is asked for; then one decision is made, and all are
// confirmed or cancelled. It does not hide holds: others see that there is less left.
// It does not make a call happen once, and relies on participants that answer a
// repeated call as the first one and refuse a try behind its cancellation: [Holds] is
// one, and txn/barrier makes one of anything in a database. Nor can it confirm at a
// participant that refuses to: such a transaction is a dead letter, and waits for a
// person. What it gives: once Run has returned, all branches are confirmed, or all are
// cancelled, or will be, whatever crashes; and what is held for a transaction that
// nobody decides on is free again soon after its time.
//
//	rooms := tcc.Holds[pgx.Tx]{DB: postgres.Pool(pool)}
//	hotel, flight := tcc.Define("hotel", rooms.Take()), tcc.Define("flight", airline)
//	c, err := coordinator.New(j, nil)              // j: a journal.Journal
//	bookings, err := tcc.New(c, nil, hotel, flight)
//	go locks.Keep(ctx, "bookings", c.Run)          // locks: a lock.Fenced
//
//	seat := flight.Try(Seat{"LH 400", "12A"})
//	outcome, err := bookings.Run(ctx, "booking", "booking/42", hotel.Try(tcc.Want{Item: "room", N: 1}), seat)
//	ticket, err := seat.OutputOf(outcome)              // err of Run is nil: it will be confirmed
//	go rooms.Watch(ctx, bookings.Decide)           // each participant; a txn.Runtime does it
//
// # Decisions
//
// While a Run tries branches nothing is written to the journal. The decision is its first
// append, with all that was tried, and there is one at most for an id: the second
// takes the first. No outcome is returned before that is durable, and
// nothing is confirmed or cancelled: so it does not matter that a Run which fails does
// so while another of the same id succeeds. A transaction of n branches costs n tries
// and one forced write before the answer, and n calls and one write that nobody waits
// for after it.
//
// An append that was not answered is no failure. Run then tries to decide to cancel,
// and finds out so which of the two came first.
//
// Copies of a Run try the branches once each. Use [Engine.Submit] for requests that can
// arrive more than once: it writes a record before the tries, and so runs an id once.
//
// # Expiry
//
// Holds have a time, and nothing is freed because it has passed: the participant asks
// [Engine.Decide], which decides to cancel if nothing was decided, and then it can
// not be confirmed any more. So a clock that is wrong makes a transaction fail, or a
// hold last, and breaks nothing. A Run decides to confirm only until Options.Margin
// before the time of its holds, by the clock that only goes on and by the wall clock,
// whichever says so first. What an engine that has died leaves is free after the time
// of the holds, the pause between two sweeps, and one question to the journal.
//
// Forget transactions from the journal, and holds from their tables, only after longer
// than anybody repeats a Run: an id that was forgotten can be run again. A participant
// that forgets by the journal's LowWater needs a margin there that is longer than
// Options.Hold, because tries come before the first record of their transaction.
//
// # Limits
//
// A Run that is cancelled cancels what it has tried. What another Run of its id had tried
// before that died, at a branch that this one did not come to, is free after its time, as
// all that nobody decides on.
//
// What is held for a decision by a person, such as a payment, does not belong into a
// Run: hold it by guard/stock, or make it the steps of a saga. Refusals are
// counted by each owner from zero. A transaction that is taken over 10 times in a row
// (TakeOvers of the coordinator's Options) without an answer seems to crash its process: it
// is halted, a dead letter as it was decided, until an [Operator]'s Retry. A decided transaction that waits for a participant is
// kept in memory meanwhile: see Held of coordinator.Options. A resource whose methods do
// not return when their context ends keeps Run waiting.
package tcc
