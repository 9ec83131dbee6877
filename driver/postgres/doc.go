// Package postgres lends a user's own PostgreSQL transactions to Interlock. It
// has no lock yet, opens no connection, retries nothing, and does not make a
// transaction safe: guard/fence does, with what this package gives it.
//
//	marks := fence.Table{}
//	err := fence.Tx(ctx, postgres.Pool(pool), marks, claim, "account/42",
//		func(ctx context.Context, tx pgx.Tx) error { … })
//
//	// or inside a transaction that the user began and ends:
//	err = marks.Enter(ctx, postgres.StdTx(tx), "account/42", claim.Token(), claim.Owner())
//
// # Guarantees
//
// Errors say what may be concluded. Inside a transaction a serialization
// failure (40001), a deadlock (40P01), a lock that was not to be had in time
// (55P03) and a session that the server ended (57P01, 25P03) are Retryable: the
// transaction did nothing and may be run again. A connection that broke is
// Uncertain, unless it is certain that nothing was sent. Everything else that
// the server says is Definite. Once COMMIT may have been sent, every end of the
// connection or session is Uncertain, whatever the client says of it, except by
// an idle time-out, which cannot strike then.
//
// # Token
//
// None is drawn here; guards keep tokens in a BIGINT.
//
// # Liveness
//
// A transaction lives as long as its connection. A stopped client keeps its row
// locks until the server ends the session; fence.Tx bounds that time.
//
// # Waiting
//
// Statements wait for row locks, bounded by the session's lock_timeout.
//
// # Interoperation
//
// [Tx] and [Pool] take pgx v5. [StdTx] and [DB] take database/sql with any
// PostgreSQL driver whose errors have an SQLState method (pgx's stdlib, lib/pq);
// with others every error is Uncertain. All settings are local to their
// transaction, so that a transaction-pooling proxy may stand in between.
//
// # Escape hatch
//
// The native transaction is in [driver.Tx] Native, and the server's own error
// is reachable by errors.As, as *pgconn.PgError with pgx.
package postgres
