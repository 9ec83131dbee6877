// Package stock prevents overselling by conditional writes. It does not know what an item is,
// nor whether a buyer paid. A hold is not a lock, and expires by itself. It does not protect
// units that are sold without it. Its promise: held and sold units of an item never exceed its
// supply, whatever runs concurrently. Repeated calls with the same id take effect once.
//
//	stocks := stock.Table{}
//	err := stocks.Hold(ctx, postgres.Tx(tx), "order/17", 10*time.Minute,
//		stock.Line{Item: "seat/12A", N: 1}, stock.Line{Item: "meal", N: 2})
//	// later, in the transaction that records the payment
//	err = stocks.Confirm(ctx, postgres.Tx(tx), "order/17")
//	var late *stock.SettledError
//	if errors.As(err, &late) {
//		// the hold had expired, and others have the seat: refund the payment
//	}
//
// [Table] works in the caller's own SQL transaction, on PostgreSQL and MariaDB, and reserves
// several items at once, all or none. [Store] works on a key-value store such as Redis, one
// item at a time; each call is one script. Both have atomic adjustments that are applied once,
// [Adjustment], which also serve as a balance that never falls below zero.
//
// # Expiry
//
// A hold ends at its deadline by the clock of the database or store. Its units are available
// from that moment on, and no sweeper has to run. A reservation that needs units takes them
// from expired holds: from the earliest first, and only from as many as it needs. A reservation
// that lost units is over; any other expired reservation can still be confirmed. If that clock
// is set back, holds last longer by as much.
//
// # Constraints
//
// A CHECK in the database rejects overselling. A unique index in a table of seats or bookings
// also covers code that bypasses this package: see the example of [Table].
//
// # Hot items
//
// Transactions that change the same item wait for each other. Hold and Adjust change the item
// in their last statement: call them late in a transaction, and commit soon. A transaction
// with several calls may still deadlock with another; the database ends it with a Retryable
// error.
//
// On MariaDB, a transaction that read before the call sees the expiries of that earlier time.
// If that matters it gets a Retryable error, and should be run again. Several concurrent calls
// with one id, of which one is refused, may be Retryable there too.
package stock
