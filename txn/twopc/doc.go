// Package twopc commits in several databases, or in none. It does not isolate: until
// the last participant has committed, a reader can see one half of a transaction and
// not the other, and branches that are snapshots each do not make one snapshot. It
// does not remember work: a transaction of one participant leaves no record, and one
// that was aborted may be run again. Nor does it come for free: between its vote and
// the decision a participant holds its locks, and holds them as long as the journal
// cannot be asked. What it gives: once Run has returned without an error, every
// participant has committed or will; after an [ErrAborted] none has or will; whatever
// crashes, and however often.
//
//	north := twopc.Define("north", pg)     // pg: a driver.Preparer, of postgres.OpenParticipant
//	south := twopc.Define("south", maria)
//	engine, err := twopc.New(c, nil, north, south) // c: a coordinator.Coordinator
//	go engine.Watch(ctx)                           // finishes what others have left; a txn.Runtime does it
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
// To have the work happen once however often it is asked for, take a guard/once in one
// of the branches: it is committed with them all, or with none. An id alone is good for
// one commit, but also for no more than one recorded abort: who tries again after that
// takes another id.
//
// # Protocol
//
// Two-phase commit with presumed abort (Mohan, Lindsay and Obermarck, 1986). All
// branches are prepared at once. If all have voted yes, the decision to commit is
// written to the journal unless anything stands there under the id; then the caller is
// answered, and the coordinator that owns the journal's shard commits the branches,
// again and again until each has said so. An abort is not written: what is in no
// journal is aborted. But a process that presumes so writes it first, so that a slow committer
// finds it there: of decide-commit and decide-abort the journal keeps the one that
// comes first. Any process that has registered the participants finishes what another
// one began.
//
// n participants cost n prepares and one append before the answer, n commits and an
// append after it. A participant that has changed nothing is not told; one that is
// alone commits in one phase, without a record. The journal is read once before the
// work.
//
// # In doubt
//
// A branch that has voted yes waits for its decision, with its locks. [Engine.Watch]
// asks every participant for those of its namespace, and finishes each by what the
// journal says. With the journal on etcd or on a replicated database, a decision
// outlasts the machine that took it, and is taken while a majority lives. While
// the journal cannot be asked the branches are blocked, and reported as such: no timeout
// makes a participant decide for itself.
//
// A branch that a person, or a system, has finished against the decision makes the
// transaction HEURISTIC: it stays in the journal, unfinished, and is reported until
// a person acknowledges it ([Operator.Resolve]).
//
// A transaction that is taken over 10 times in a row (TakeOvers of the coordinator's
// Options) while participants are called to commit, and none answers, seems to crash its
// process: it is halted, with its branches prepared, until [Operator.Retry].
//
// # Limits
//
// Work that waits for rows keeps its connection; so many runs at once that the pool has
// none left for COMMIT PREPARED, or for a journal in the same pool, wait for each other:
// bound them below its size. Make tables before transactions run: an index waits for
// branches in doubt.
//
// How old a branch may be whose decision is presumed is Options.Retention: keep
// finished transactions in the journal for longer than that. The clocks of the
// processes, and of those participants that say since when a branch waits, are used
// for ages alone; one that is wrong aborts early or late, or asks for a person.
package twopc
