// Package interlock is the vocabulary of Interlock: tokens, claims, what a
// backend promises, and what an error means. It imports nothing but the
// standard library, and every other package speaks its words.
//
// Nothing in Interlock promises mutual exclusion. A process can be stopped
// between deciding to write and writing, and no lock service can reach into it.
// What is promised instead: a guarded store never accepts a lower token after a
// higher one has entered, for reads and for writes alike.
//
// A claim (package claim/lock) says who may act and carries a token. A guard
// (package guard/fence) sits in the store and refuses a token that is too old:
//
//	d, err := redis.Open(ctx, client, nil)              // or etcd, or memory
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, postgres.Pool(pool), marks, c, "account/42",
//			func(ctx context.Context, tx pgx.Tx) error {
//				// the mark has been raised: read, decide, write
//				return nil
//			})
//	})
//
// Where to go from here: docs/ARCHITECTURE.md is the map, driver/driver.go
// states what a backend owes, docs/adr says why.
package interlock
