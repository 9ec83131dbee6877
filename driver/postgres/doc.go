// Package postgres keeps locks in PostgreSQL, and lends a user's own
// transactions to Interlock. It does not promise mutual exclusion: a process
// that is stopped goes on afterwards with a claim that another has by then, and
// guard/fence refuses what it writes. It retries nothing, and it does not make
// a transaction safe: guard/fence does, with what this package gives it.
//
//	d, err := postgres.Open(ctx, pool.Config().ConnConfig, nil)
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42",
//			func(ctx context.Context, tx pgx.Tx) error { … })
//	})
//
// There are four ways to lock, and one to keep small values:
//
//   - [Open]: session advisory locks, all on one connection of the driver's own.
//   - [OpenTable]: rows with a lease, on the user's pool. It works behind poolers
//     that lend server processes to transactions, which Open refuses.
//   - [TxLock] and [TryTxLock]: advisory locks that live as long as a transaction
//     of the user's.
//   - Package claim/rowlock: the rows themselves.
//   - [NewValues]: small values that only the holder of a claim can write.
//
// Beside them [OpenParticipant] and [OpenStdParticipant] make a database take part in
// two-phase commit, by PREPARE TRANSACTION: see [Participant] and package txn/twopc.
//
// # Guarantees
//
// Locks are Fenced, between processes that use one database and one namespace,
// with its tables in one schema: Open refuses to draw tokens from a second one
// while sessions use the first; rows in two schemas exclude nobody. Two names whose keys are equal, one pair in 2^64, exclude each other; that is
// safe. Exclusion survives a partition, also one of which only the server sees the
// end of the connection: what an ended session did not release stays with its
// holder until the TTL after its last sign of life is over. It does not survive a crash of the server's machine, which frees
// every session lock at once while a holder may still wait for an answer, nor a
// failover.
//
// Errors of transactions say what may be concluded. Inside a transaction a
// serialization failure (40001), a deadlock (40P01), a lock that was not to be
// had in time (55P03) and a session that the server ended (57P01, 25P03) are
// Retryable: the transaction did nothing and may be run again. A connection that
// broke is Uncertain, unless it is certain that nothing was sent. Everything else
// that the server says is Definite. Once COMMIT may have been sent, only what the
// server says before it writes the commit record is sure: a serialization failure, a
// deadlock and an idle timeout are Retryable, what a deferred constraint or trigger
// raised is Definite. Every end of the connection or session is Uncertain, whatever
// the client says of it, and so are a cancelled query and a timeout (57014, 55P03,
// 25P04), which the server may report after a commit.
//
// # Token
//
// With Open it is the next value of a sequence, drawn after the lock is held. Numbers are
// reserved a thousand at a time, and that is flushed before one of them is returned: the
// first session after a crash goes on above them, so that no crash brings a number twice.
// With OpenTable it is a counter in the row of the name. Both are at least the
// server's microseconds since 2020: the sequence when a session opens, a row's
// counter at each grant. Transaction-scope locks have none: the transaction is
// the guard. Guards keep tokens in a BIGINT.
//
// # Liveness
//
// Session locks live with their connection, and that is bounded: the server is
// told (idle_session_timeout) to end the session when it has heard nothing for
// the TTL, so that a half-open connection or a stopped process keeps its locks
// no longer, or 5 s longer if it vanished during a statement that waits. A
// statement is sent every third of the TTL, whatever the number of locks. A process
// that is killed keeps its locks for the rest of its TTL, unless an operator breaks them,
// because the server cannot distinguish its end from that of a connection alone. When the connection ends, every claim on it gets ErrSessionEnded at
// once; a new session never revives what the former one held, and ends it first
// if the server still has it.
//
// A row's lease lives for the TTL by the server's clock, and all are renewed in
// one statement, over the user's pool: if that has no connection to spare for so
// long that the TTL ends, claims are lost. An attempt that was given up may reach
// the server late, also after its Release: its lease then lapses unused.
//
// A transaction lives as long as its connection. A stopped client keeps its row
// locks until the server ends the session; fence.Tx bounds that time.
//
// # Waiting
//
// Nothing blocks in the server. A session that releases a lock notifies the first
// in line whose session lives, and only that one; it tries, and another process
// may come first (Order is Barging). A waiter that receives nothing tries about once a
// second. A process that dies while its try is under way may be granted the lock,
// and then keeps it for the TTL. With OpenTable a release notifies all waiters if there are any, where
// the server can be reached without a pooler, and they ask in growing intervals
// otherwise.
//
// Statements in the user's transaction wait for row locks, bounded by the
// session's lock_timeout.
//
// # Interoperation
//
// [Key] is the number of a name's advisory lock. A session that takes it by hand, with
// pg_advisory_lock(key), excludes this driver and is excluded.
//
// [Tx] and [Pool] take pgx v5. [StdTx] and [DB] take database/sql with any
// PostgreSQL driver whose errors have an SQLState method (pgx's stdlib, lib/pq);
// with others every error is Uncertain. All settings of transactions are local to
// them, so that a transaction-pooling proxy may stand in between.
//
// # Escape hatch
//
// The tables and the sequence of a namespace begin with its name and an
// underscore. select pg_terminate_backend(pid) ends a session, and pg_locks
// shows which one holds a key. The native transaction is in [driver.Tx] Native,
// and the server's own error is reachable by errors.As, as *pgconn.PgError with
// pgx.
package postgres
