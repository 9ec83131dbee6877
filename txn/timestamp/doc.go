// Package timestamp is a timestamp oracle: it orders the events of several processes. It
// does not tell the time of a clock, and it is no cheaper than one read of its store for
// each batch of requests. What it gives: no two timestamps are equal, and one that was
// requested after another was returned is greater, whichever process requested them, also over the
// crash, the pause or the jumping clock of any process.
//
//	oracle, err := timestamp.NewOracle(store, "oracle", nil) // store: a driver.KeyValues that all processes share
//	at, err := oracle.Next(ctx)
//
// # Protocol
//
// The store keeps an epoch and an upper bound. The leader is the process that wrote them
// last; it issues timestamps below the bound from memory. A new leader raises the epoch
// by compare-and-swap and starts at the bound. Before a leader issues a batch it reads the
// epoch; if it has changed, the leader is fenced, and takes over again or not at all. So
// no lease and no clock is trusted. Requests that arrive while a batch is under way are
// the next batch.
//
// Any process may lead. One that requests alone costs one read for each batch, and one
// write each few seconds. Processes that alternate cost one write for each change.
//
// The upper half of a timestamp is a time in milliseconds, which advances with the
// leader's monotonic clock. A clock that is set forward carries the oracle along only when
// a leader takes over, and one that is set back is not followed.
package timestamp
