// Package tcc reserves at several participants, then confirms all reservations or cancels all
// (Try-Confirm-Cancel).
//
// Not promised:
//
//   - Isolation. A try reduces what others can get before the decision.
//   - Exactly-once calls. Participants must answer a repeated call like the first, and reject a
//     try after its cancellation. [Holds] does that, and txn/barrier makes any work in a
//     database do it.
//   - Confirmation at a participant that refuses it. Such a transaction is a dead letter and
//     waits for an operator.
//
// Promised: once Run has returned, all branches are confirmed or will be, or all are cancelled or
// will be, across any number of crashes. What is held for a transaction without a decision is
// released soon after its time.
//
//	rooms := tcc.Holds[pgx.Tx]{DB: postgres.Pool(pool)}
//	hotel, flight := tcc.Define("hotel", rooms.Take()), tcc.Define("flight", airline)
//	rt, err := txn.Open(ctx, "postgres://127.0.0.1/shop", nil)
//	bookings, err := tcc.New(rt.Coordinator(), nil, hotel, flight)
//	err = rt.Start(ctx) // also releases expired holds
//
//	seat := flight.Try(Seat{"LH 400", "12A"})
//	outcome, err := bookings.Run(ctx, "booking", "booking/42", hotel.Try(tcc.Want{Item: "room", N: 1}), seat)
//	ticket, err := seat.OutputOf(outcome) // err of Run is nil: it will be confirmed
//
// # Decisions
//
// An [Engine.Run] writes nothing to the journal while it tries branches. The decision is its
// first append, with all branches that were tried. An id has at most one decision. No outcome is
// returned, confirmed or cancelled before the decision is durable.
//
// If the append of the decision gets no answer, Run tries to decide to cancel, and learns which
// of the two came first.
//
// Each Run of one id tries the branches again. For requests that can arrive more than once use
// [Engine.Submit]: it writes a record before the tries, so an id runs once.
//
// # Expiry
//
// A hold has a time, but is not released because that time has passed. The participant asks
// [Engine.Decide], which decides to cancel if there is no decision; from then on the transaction
// cannot be confirmed. A wrong clock can make a transaction fail or a hold last. A Run decides
// to confirm only until Options.Margin before the time of its holds, by the monotonic and the
// wall clock, whichever is later. What a crashed engine leaves is released after the time of its
// holds, the pause between two sweeps, and one request to the journal.
//
// Delete transactions from the journal, and holds from their tables, only when no client repeats
// a Run any more: a deleted id can run again. A participant that deletes by the journal's
// LowWater needs a margin longer than Options.Hold, because tries come before the first record of
// their transaction.
//
// # Limits
//
// If the context of a Run ends, what it has tried is cancelled. A branch that only an earlier,
// crashed Run of the id has tried is released after its time.
//
// Do not wait for a person, such as for a payment, in a Run: hold by guard/stock, or use a saga.
// A transaction that is taken over 10 times in a row without an answer (TakeOvers of the
// coordinator's Options) is halted: a dead letter with its decision, until [Operator.Retry]. A
// resource whose methods do not return when their context ends delays Run.
package tcc
