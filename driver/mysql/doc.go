// Package mysql implements locks in MariaDB, and lends a user's own MariaDB transactions
// to Interlock. It does not promise mutual exclusion: a paused holder continues when it
// wakes, and a failover to a replica loses the last grants. Guard the protected data with
// the token; guard/fence does that in the same transaction as the work. MySQL is refused
// (docs/adr/010-mysql.md).
//
//	config, err := client.ParseDSN("app@tcp(db:3306)/shop") // github.com/go-sql-driver/mysql
//	d, err := mysql.Open(ctx, config, nil)                  // or OpenTable(ctx, db, nil)
//	defer d.Close(ctx)
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, mysql.DB(db), fence.Table{}, c, "account/42",
//			func(ctx context.Context, tx *sql.Tx) error { … })
//	})
//
// [Open] takes locks by GET_LOCK, all locks of a process on a separate connection;
// [OpenTable] by rows with a lease, on the user's pool and behind any proxy. Both require
// MariaDB 10.5 or later.
//
// [OpenParticipant] makes a server take part in two-phase commit, by XA: see [Participant]
// and package txn/twopc. [NewKeyValues] is a store with compare-and-swap, for
// txn/percolator and the boards of claim/deadlock.
//
// # Guarantees
//
// GET_LOCK is local to one server, and in its memory. Three events release a lock while
// its holder still believes to have it, for up to the TTL: a crash of the server, an
// operator who kills the session, and a partition in which only the server sees the end of
// the connection. So ExclusionSurvives lacks interlock.Partition. OpenTable does not have
// this gap. A node of a Galera cluster is refused.
//
// Rows with a lease survive a crash if commits are on disk (innodb_flush_log_at_trx_commit
// 1 or 3, sync_binlog 1 with a binary log, innodb_doublewrite on, and innodb_flush_method
// neither nosync nor littlesync; read at Open). They do not survive a step of
// the server's clock, by which leases end. They are not tested on Galera. An attempt
// without an answer within a third of the TTL, 1 s to 10 s, may reach the server late,
// also after its Release: its lease then expires unused.
//
// In a user's transaction, these are Retryable: a deadlock (1213), a lock timeout (1205), a
// row that changed since the snapshot (1020), a full disk or table (1021, 1114), too little
// memory (1037, 1041, 1206), and a session that the server ended (1927, 1053). MariaDB undoes the
// whole transaction after a deadlock, and only the statement after a timeout. In both cases
// [Tx] and [DB] refuse further statements, and a transaction of DB is not committed. After a
// statement that commits by itself, such as CREATE, a bounded transaction commits nothing
// either, and its Commit is Uncertain. A broken connection is Uncertain, unless nothing was
// sent. Once COMMIT may have been sent, few errors mean that it was not done; all others are
// Uncertain.
//
// # Token
//
// With Open it is the next number of a counter in the server's memory, drawn by the same statement
// after GET_LOCK. Numbers are reserved, a thousand or more at a time, by a commit before one of them is
// returned. When a session opens, the counter rises to all that was reserved, and to the microseconds
// of the server's clock since 2020.
//
// With OpenTable each name has a row with a counter: at a grant the previous counter plus one, or
// the clock if that is more. Rows of unused names are removed after a minute, and their highest
// counter is kept: new rows start above it.
//
// # Liveness
//
// Of a session: the driver sets wait_timeout to the TTL rounded up to whole seconds. A
// server that receives no statement for this time ends the session, with all its locks.
// The driver sends a statement each third of the TTL. When the server closes a session,
// all its claims are lost at once, and the next request opens another session. If a server
// becomes read-only, the session ends within a third of the TTL.
//
// Of a lease: one statement each third of the TTL renews up to 200, over the user's
// pool. If the pool has no free connection until the TTL ends, claims are lost. A server that
// becomes read-only rejects renewals, unless the pool's user has READ_ONLY ADMIN or SUPER: grant neither.
//
// # Waiting
//
// MariaDB sends no notification when a lock is free. Waiters try again, first after some
// 20 ms and then at random intervals up to Options.Poll. Any of them may be next. A
// release wakes the waiters of the same process at once. Watchers poll four times a
// second.
//
// # Interoperation
//
// [LockName] returns the name of a lock in GET_LOCK, for other programs that exclude a
// [Driver]. [Open] refuses a proxy that numbers connections itself. [Tx] and [DB] need
// github.com/go-sql-driver/mysql.
//
// # Escape hatch
//
// SELECT * FROM interlock_holder WHERE connection = IS_USED_LOCK(lock_name) shows the
// holders, and KILL of a connection releases all its locks. Deleting a row of
// interlock_lease releases its name. [driver.Tx] Native returns the transaction, and
// errors.As finds the server's error, a *mysql.MySQLError of the client.
package mysql
