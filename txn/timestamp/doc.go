// Package timestamp is a timestamp oracle: it orders the events of several processes. A
// timestamp is not the time of a clock, and each batch of requests costs at least one read
// of the store. Guarantee: no two timestamps are equal, and one that was requested after
// another was returned is greater. This holds across processes, and if any process crashes,
// pauses or has a clock that jumps.
//
//	oracle, err := timestamp.NewOracle(store, "oracle", nil) // store: a driver.KeyValues that all processes share
//	at, err := oracle.Next(ctx)
//
// # Protocol
//
// The store keeps an epoch and an upper bound. The leader is the process that wrote them
// last; it issues timestamps below the bound from memory. A new leader raises the epoch
// by compare-and-swap and starts at the bound. Before a leader issues a batch it reads the
// epoch; if it has changed, the leader is fenced, and must take over again. So correctness
// depends on no lease and no clock. Requests that arrive during a batch form the next one.
//
// A leader costs one read for each batch, and one write every few seconds; a change of the
// leader costs one write.
//
// [Oracle.Commit] writes other keys of the store in place of a batch. Its write replaces the
// leader's record, too, and no timestamp is issued until its outcome is known.
//
// The upper bits of a timestamp are a time in milliseconds, which advances with the
// leader's monotonic clock. The oracle follows a clock that is set forward only when a
// leader takes over, and never one that is set back. A new leader starts at the bound, ahead of
// that time by up to [Options].Ahead, and then runs at half the speed until it is not.
package timestamp
