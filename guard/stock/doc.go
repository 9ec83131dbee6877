// Package stock keeps more from being sold than there is, by writing on a
// condition instead of looking first. It does not know what an item is, nor
// whether a buyer paid; a hold is no lock, and ends by itself; and it protects no
// units that are sold past it. What it gives: of each item never more is held and
// sold than its supply, whatever runs at the same time, and repeating any call
// with the same id does its work once.
//
//	stocks := stock.Table{}
//	err := stocks.Hold(ctx, postgres.Tx(tx), "order/17", 10*time.Minute,
//		stock.Line{Item: "seat/12A", N: 1}, stock.Line{Item: "meal", N: 2})
//	// later, in the transaction that records the payment
//	err = stocks.Confirm(ctx, postgres.Tx(tx), "order/17")
//	var late *stock.SettledError
//	if errors.As(err, &late) {
//		// the hold had expired, and others have the seat: give the money back
//	}
//
// [Table] works in the user's own SQL transaction, on PostgreSQL and MariaDB, and
// reserves several items at once, all or none. [Store] works on a key-value store
// such as Redis, one item at a time, each call one script. Both have atomic
// differences that are applied once, [Adjustment], which also serve as a balance
// that never falls below zero.
//
// # What expires
//
// A hold ends when its time is over by the clock of the database or store. Its
// units are available from that moment on, without anything having to run:
// a reservation that needs them takes them, from those that expired first and from
// no more than needed. A reservation that lost units so is over; any other can be
// confirmed late. If that clock is set back, holds last longer by as much.
//
// # The net behind it
//
// A CHECK in the database refuses what would oversell. Where the user has a table
// of seats or bookings, a unique index there stays in force where code forgets this
// package: see the example of [Table].
//
// # Hot items
//
// All who change an item wait for each other, since each must see what the one
// before left. Hold and Adjust change the item in their last statement, and so
// should a transaction: call them late, and commit. Of many items they lock one
// after the other in the order of their names; so a transaction that calls several
// times may still meet another in a circle, which the database ends with an error
// that is Retryable.
//
// On MariaDB, a transaction that had read before it calls sees what expired as of
// then: it gets a Retryable error where that matters, and should be run again. Several
// calls with one id at the same moment, of which one is refused, may be Retryable
// there, too.
package stock
