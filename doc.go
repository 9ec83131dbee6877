// Package interlock defines the terms of Interlock: tokens, claims, the guarantees of a
// backend, and the kinds of errors. It imports only the standard library, and every other
// package uses it.
//
// Interlock cannot promise mutual exclusion. A process can be paused between its decision to
// write and the write, and no lock service can prevent that. Interlock promises this instead:
// after a higher token has entered a guarded store, the store accepts no lower token, for reads
// and for writes.
//
// A claim (package claim/lock) says which process may act, and carries a token. A guard
// (package guard/fence) is part of the store and rejects stale tokens:
//
//	locks, err := lock.Open(ctx, "redis://127.0.0.1:6379", nil) // or lock.NewFenced with a client of yours
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, postgres.Pool(pool), marks, c, "account/42",
//			func(ctx context.Context, tx pgx.Tx) error {
//				// the mark has been raised: read, decide, write
//				return nil
//			})
//	})
//
// See docs/ARCHITECTURE.md for the packages, driver/driver.go for the obligations of a backend,
// and docs/adr for the reasons of decisions.
package interlock
