// Package twopc commits in several databases, or in none (two-phase commit).
//
// Not promised:
//
//   - Isolation. Until the last participant has committed, a reader can see one half of a
//     transaction. Snapshots of several participants do not form one snapshot.
//   - Deduplication of work. A transaction with one participant leaves no record, and an
//     aborted one may run again.
//   - Availability. Between its vote and the decision a participant holds its locks, for as
//     long as the journal cannot be reached.
//
// Promised, across any number of crashes: once Run has returned without an error, every
// participant has committed or will. After an ErrAborted none has or will.
//
//	north := twopc.Define("north", pg)     // pg: a driver.Preparer, of postgres.OpenParticipant
//	south := twopc.Define("south", maria)
//	rt, err := txn.Open(ctx, "postgres://127.0.0.1/bank", nil)
//	engine, err := twopc.New(rt.Coordinator(), nil, north, south)
//	err = rt.Start(ctx) // also finishes branches in doubt
//
//	err = engine.Run(ctx, "transfer/42", func(ctx context.Context, t *twopc.T) error {
//		a, err := north.Join(ctx, t) // a pgx.Tx
//		…
//		b, err := south.Join(ctx, t) // a *sql.Conn
//		…
//		_, err = b.ExecContext(ctx, "update account set balance = balance + 10 where …")
//		return err
//	})
//
// To run the work once for any number of requests, use guard/once in one of the branches: it
// commits with all of them or with none. An id allows one commit, or one recorded abort: use
// another id to try again after that.
//
// # Protocol
//
// Two-phase commit with presumed abort (Mohan, Lindsay and Obermarck, 1986). All branches are
// prepared concurrently. If all have voted yes, the decision to commit is appended to the
// journal, unless the id has a decision. Then the caller gets its answer, and the coordinator of
// the journal's shard commits the branches and repeats that until each has confirmed. An abort is
// not written: a transaction without a record is aborted. A process that presumes an abort writes
// it first, so that a slow committer finds it: the first of the two decisions counts. Any process
// with the participants registered finishes transactions of others.
//
// A participant without changes receives no decision. A single participant commits in one phase,
// without a record.
//
// # In doubt
//
// A branch that has voted yes waits for its decision and keeps its locks. [Engine.Watch] asks
// every participant for the branches of its namespace, and finishes each according to the
// journal. While the journal cannot be reached, the branches are blocked, and reported as such:
// no timeout lets a participant decide alone.
//
// If a person or a system has finished a branch against the decision, the transaction is
// HEURISTIC. It stays unfinished in the journal, and is reported until an operator acknowledges it
// ([Operator.Resolve]). If its abort has ended, which a presumed one has after Options.Patience, the
// branch is only reported.
//
// A transaction that is taken over 10 times in a row without an answer to the commit (TakeOvers
// of the coordinator's Options) is halted until [Operator.Retry]. Its branches stay prepared.
//
// # Limits
//
// Work that waits for rows keeps its connection. If concurrent runs use up a pool that COMMIT
// PREPARED or the journal needs, they wait for each other: allow fewer runs than connections.
// Create tables and indexes before transactions run: CREATE INDEX waits for branches in
// doubt.
//
// Options.Retention bounds the age of a branch whose abort is presumed: keep finished
// transactions in the journal for longer. A wrong clock aborts early or late, or leaves a branch
// to an operator.
package twopc
