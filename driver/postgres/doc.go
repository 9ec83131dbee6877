// Package postgres keeps locks in PostgreSQL, and adapts a user's own transactions for Interlock.
// It does not guarantee mutual exclusion by itself: a stopped process that continues can write
// after another process has the claim. Package guard/fence rejects that, in the user's
// transactions. This package retries nothing.
//
//	d, err := postgres.Open(ctx, pool.Config().ConnConfig, nil)
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42",
//			func(ctx context.Context, tx pgx.Tx) error { … })
//	})
//
// There are four kinds of locks:
//
//   - [Open]: session advisory locks, all on one connection of the driver's own.
//   - [OpenTable]: rows with a lease, on the user's pool. It works behind poolers that assign
//     server processes to transactions, which Open refuses.
//   - [TxLock] and [TryTxLock]: advisory locks that last as long as a transaction of the user.
//   - Package claim/rowlock: locks of the rows themselves.
//
// [NewValues] keeps small values that only the holder of a claim can write. [OpenParticipant] and
// [OpenStdParticipant] make a database a participant of two-phase commit, by PREPARE TRANSACTION:
// see [Participant] and package txn/twopc.
//
// # Guarantees
//
// Locks are Fenced, between processes that use one database and one namespace with its tables in
// one schema. Open refuses a second schema while sessions use the first; rows in two schemas do
// not exclude each other. Exclusion survives a partition, also one in which only the server sees
// the end of the connection: the locks of an ended session stay with its holder until the TTL
// after its last statement. Exclusion does not survive a failover, nor a crash of the server's
// machine. The crash frees all session locks at once, while a holder may still wait for an answer.
//
// Errors inside a transaction are classified:
//
//   - a serialization failure (40001), a deadlock (40P01), a lock timeout (55P03), a session that the
//     server ended (57P01, 25P03), a full disk (53100), and too little memory (53200) or too few
//     connections (53300) are Retryable: the transaction did nothing
//   - a broken connection is Uncertain, unless nothing was sent
//   - all other errors of the server are Definite
//
// Once COMMIT may have been sent, only errors from before the commit record are certain: a
// serialization failure, a deadlock and an idle timeout are Retryable, and errors of deferred
// constraints and triggers are Definite. Every end of the connection or session is Uncertain. So
// are a cancelled query and a timeout (57014, 55P03, 25P04), which the server may report after a
// commit.
//
// # Token
//
// With Open the token is the next value of a sequence, drawn after the lock is held. Numbers are
// reserved a thousand at a time. The reservation is flushed before one of its numbers is returned,
// so no number is returned twice. With OpenTable the token is a counter in the row of the name.
// Both are at least the server's microseconds since 2020: the sequence when a session opens, a
// row's counter at each grant. Locks of a transaction have no token: the transaction is the guard.
// Guards keep tokens in a BIGINT.
//
// # Liveness
//
// Session locks end with their connection. The server ends a session without a statement for the
// TTL (idle_session_timeout). So a half-open connection or a stopped process keeps its locks no
// longer, or 5 s longer if it stopped during a waiting statement. One statement is sent every
// third of the TTL, for any number of locks. A killed process keeps its locks for the rest of its
// TTL, unless an operator breaks them. Both times are by the server's wall clock: if it is set
// back, locks of a process that dies or falls silent stay held for that much longer. When the connection ends, every claim on it gets
// ErrSessionEnded at once. A new session never takes over claims of the former one, and ends it
// first if the server still has it.
//
// A row's lease lasts for the TTL by the server's clock. One statement on the user's pool renews all
// leases: if the pool has no free connection until the TTL ends, the claims are lost. An abandoned
// attempt may reach the server late, even after its Release; its lease then expires unused.
//
// The locks of a transaction last as long as it does, and it ends with its connection. A stopped
// client keeps its row locks until the server ends the session; fence.Tx bounds that time.
//
// # Waiting
//
// No request blocks in the server. A session that releases a lock notifies only the first waiter
// with a live session. That waiter tries, and another process may be faster (Order is Barging). A
// waiter without a notification tries about once a second. With OpenTable a release notifies all
// waiters; behind a pooler they try in growing intervals.
//
// Statements in the user's transaction wait for row locks, bounded by the
// session's lock_timeout.
//
// # Interoperation
//
// [Key] returns the number of a name's advisory lock. A session that takes it by pg_advisory_lock(key)
// excludes this driver and is excluded by it.
//
// [Tx] and [Pool] take pgx v5. [StdTx] and [DB] take database/sql with any
// PostgreSQL driver whose errors have an SQLState method (pgx's stdlib, lib/pq);
// with others every error is Uncertain. All settings of transactions are local to them, so they work
// behind a pooler of transactions.
//
// # Escape hatch
//
// The tables and the sequence of a namespace begin with its name and an
// underscore. select pg_terminate_backend(pid) ends a session, and pg_locks
// shows which one holds a key. The native transaction is in [driver.Tx] Native,
// and the server's own error is reachable by errors.As, as *pgconn.PgError with
// pgx.
package postgres
