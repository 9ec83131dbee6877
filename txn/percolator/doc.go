// Package percolator runs transactions over keys of several stores that each have only
// compare-and-swap. It does not make a store more durable: on Redis a failover can lose
// half of a committed transaction. It does not read data that other programs write to the
// stores, and it is slower than the transactions of one database. Guarantees: snapshot
// isolation, or serializable transactions, over all keys; a transaction is atomic even if
// any process crashes; no process has to recover first. Readers do not wait for a living writer: they
// delay its commit. Only if they have delayed it for half a second do they wait, so that it
// commits: for as long as that delay, and at most half a minute.
//
//	oracle, err := timestamp.NewOracle(etcdStore, "oracle", nil)
//	db, err := percolator.Open(ctx, oracle, percolator.Stores{"eu/": etcdStore, "us/": postgresStore}, nil)
//
//	err = db.Update(ctx, func(tx *percolator.Tx) error {
//		value, found, err := tx.Get(ctx, "eu/alice")
//		…
//		return errors.Join(tx.Put("eu/alice", less), tx.Put("us/bob", more))
//	})
//
// # Cost
//
// In addition to its reads, a transaction costs two timestamps, concurrent writes to each
// store (up to 64 keys each), and a write for the primary, the key whose record decides;
// after the answer a write for each other store. A timestamp is one read of the oracle's
// store, shared by all that wait for one.
//
// If all keys are in the oracle's store, and only this process requests timestamps, a commit is
// one write in place of two and a timestamp. It needs up to 63 keys and, if serializable,
// no reads of other keys. [Open] recognizes the store by comparison with that of the oracle: give
// both the same value.
//
// # Bounds
//
// A record keeps the last 64 versions, at most 256 KiB: an older snapshot of such a key
// gets [ErrTooOld], never a wrong value. Run [DB.Collect] every few minutes: it drops old
// versions and resolves locks of dead processes. [DB.Snapshot] keeps the versions that longer
// reads need, but no more than 64 of a record.
//
// The clock of a process that issues timestamps may be ahead by less than half an hour.
// Otherwise a collection can remove a deleted key too early: an older snapshot then does not
// find the key, in place of [ErrTooOld]. If a clock that is ahead by more than 40 s begins to
// issue timestamps, a safe point can pass a [DB.Snapshot]: it gets ErrTooOld, and runs again.
//
// The algorithm is that of Peng and Dabek, "Large-scale incremental processing using
// distributed transactions and notifications" (2010), with the corrections of TiKV and TiDB.
// DESIGN.md has the rules.
package percolator
