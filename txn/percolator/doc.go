// Package percolator runs transactions over keys of several stores, of which each has no
// more than compare-and-swap. It does not make a store more durable than it is: on Redis a
// failover can lose half of a committed transaction. It does not read what other programs
// write to the stores, and it is not faster than the transactions of one database. What it
// gives: snapshot isolation, or serializable transactions, over all keys; a transaction
// takes place whole or not at all, whatever crashes; readers never wait for a living
// writer; there is no coordinator that has to come back.
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
// A transaction of one store costs, beside its reads, two timestamps and two writes,
// whatever the number of keys (up to 64). One of several stores costs two timestamps, a
// write in each store at once, a write for the primary, and one for each other store
// after the answer. A timestamp is one read of the oracle's store, shared by all that
// wait for one.
//
// # Bounds
//
// A record keeps the last 64 versions, at most 256 KiB: an older snapshot of such a key
// gets [ErrTooOld], never a wrong value. Run [DB.Collect] every few minutes: it drops old
// versions and resolves what dead processes left. [DB.Snapshot] holds it back for reads
// that take longer.
//
// The algorithm is that of Peng and Dabek, "Large-scale incremental processing using
// distributed transactions and notifications" (2010), with the corrections that TiKV and
// TiDB made to it since. DESIGN.md has the rules.
package percolator
