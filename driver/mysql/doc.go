// Package mysql implements locks in MariaDB, and lends a user's own MariaDB transactions
// to Interlock. It does not promise mutual exclusion: a paused holder continues when
// it wakes, and a failover to a replica loses the last grants. Guard what a lock
// protects with its token; guard/fence does that in the same transaction as the
// work. The package and its URLs, mysql://, have the name of the protocol and of the client
// library. The database is MariaDB: MySQL is refused.
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
// [Open] takes locks by GET_LOCK, all of a process on one connection of its own;
// [OpenTable] by rows with a lease, on the user's pool and behind any proxy.
// Both require MariaDB 10.5 or later. MySQL does not answer an INSERT with its row
// (docs/adr/010-mysql.md compares them).
//
// Beside them [OpenParticipant] makes a server take part in two-phase commit, by XA:
// see [Participant] and package txn/twopc. [NewKeyValues] keeps keys that are compared and
// swapped, for txn/percolator and the boards of claim/deadlock.
//
// # Guarantees
//
// GET_LOCK is local to one server and lives in its memory. A crash of the server
// frees every lock while the holders still believe in theirs, for up to the rest
// of the TTL; so does an operator who kills a session, and a partition of which the
// server sees the end of the connection and the holder sees nothing: for up to the TTL
// the next holder may be granted the lock while the former believes in it
// (ExclusionSurvives lacks interlock.Partition). OpenTable has no such gap. A node of a Galera cluster
// is refused, because the other nodes do not know its locks. Rows with a lease
// survive a crash if commits are on disk (innodb_flush_log_at_trx_commit 1 or 3,
// and sync_binlog 1 where there is a binary log; read at Open), and not a step of
// the server's clock, by which leases end. They have not been tried on Galera. An
// attempt that was not answered within a third of the TTL, 1 s to 10 s, may reach
// the server late, also after its Release: its lease then lapses unused.
//
// In a user's transaction, a deadlock (1213), a lock that was not to be had in
// time (1205), a row that changed since the snapshot (1020) and a session that the
// server ended (1927, 1053) are Retryable. MariaDB undoes all of the transaction
// after the first of these, and after a timeout only the statement: in both cases
// nothing more is run by way of [Tx] or [DB], and a transaction of DB is not
// committed any more. After a statement that commits by itself, such as CREATE, a
// bounded transaction commits nothing more either, and its Commit is Uncertain. A
// connection that broke is Uncertain, unless it is certain that nothing was sent.
// Once COMMIT may have been sent, few errors mean that it was not done; all others
// are Uncertain.
//
// # Token
//
// Each name has a row with a counter: at a grant the previous counter plus one, or
// the microseconds of the server's clock since 2020 if that is more. In session
// mode it is drawn by the same statement, after GET_LOCK. In both modes, rows of names
// that nobody uses are removed after a minute, and the highest counter among them is kept:
// new rows start above it.
//
// # Liveness
//
// Of a session: wait_timeout, which the driver sets to the TTL rounded up to whole
// seconds, makes the server end a session that it has not heard for so long, and
// with it all its locks. Every statement counts as a sign of life, and one is sent
// each third of the TTL. A session that the server closed is noticed at once, all
// its claims are lost, and the next request opens another one. A server that was
// made read-only, as one that is replaced, ends the session within a third of the
// TTL.
//
// Of a lease: one statement each third of the TTL renews up to 200, over the user's
// pool: if that has no connection to spare for so long that the TTL ends, claims
// are lost.
//
// # Waiting
//
// MariaDB sends no notification when a lock is free. Waiters try again, at first after some
// 20 ms and then at random times up to Options.Poll apart. Any of them may come
// next. A release wakes the waiters of the same process at once. This is the main
// difference from package postgres, which uses NOTIFY. Watchers look four
// times a second.
//
// # Interoperation
//
// [LockName] is the name under which GET_LOCK is taken, for others who want to
// exclude a [Driver]. A proxy that gives connections numbers of its own is refused
// by [Open]; one that hands the server's numbers on and still lends connections to
// others is noticed when another connection answers. [Tx] and [DB] need
// github.com/go-sql-driver/mysql.
//
// # Escape hatch
//
// SELECT * FROM interlock_holder WHERE connection = IS_USED_LOCK(lock_name) shows
// who holds, and KILL of that connection frees all that it has. Deleting a row of
// interlock_lease frees its name. [driver.Tx] Native gives the transaction, and
// errors.As the server's own error, a *mysql.MySQLError of the client.
package mysql
