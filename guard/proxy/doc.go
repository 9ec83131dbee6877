// Package proxy makes calls to a resource that cannot check fencing tokens, such as a
// third-party API. It ensures that the call of a former owner is not sent after that of a newer
// one. It cannot recall a call that was sent: if an owner loses the claim while its call is in
// transit, the next owner's call may take effect first. It does not make a call take effect
// once either; an API with idempotency keys does.
//
//	calls, err := proxy.NewRecorded(postgres.Pool(pool), fence.Table{}, proxy.Calls{}, nil)
//	client := &http.Client{Transport: proxy.NewTransport(nil)}
//	…
//	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		_, err := calls.Do(ctx, c, "account/42", "payout/7", func(ctx context.Context, call *proxy.Call) (int, error) {
//			req, err := http.NewRequestWithContext(ctx, "POST", api, body)
//			…
//			resp, err := client.Do(req)
//			…
//			return resp.StatusCode, nil
//		})
//		return err
//	})
//
// [Handler] does the same as a reverse proxy, for remote callers that send their tokens as in
// package guard/wire.
//
// # Two strengths
//
// Strict, by [NewRecorded], keeps marks in a SQL database. It raises the mark and commits it
// before anything is sent, so the mark survives a crash. Then it enters the mark again, and
// keeps the row locked while the call is made. So calls for a resource are made one at a time,
// by any number of processes that share the database. A transaction stays open during the call,
// and a statement at least each second keeps its session alive. If the process is paused, the
// database ends the session within two thirds of the claim's remaining time.
//
// Loose, by [NewUnrecorded], keeps marks in Redis, etcd or another [fence.Store]. Calls through
// one process are made one at a time, and none after that of a newer owner. Between processes
// there is a window between Enter and the call. In it, only the clock of the claim keeps a
// former owner from sending.
//
// # What remains possible
//
// A call is sent only if the claim is valid immediately before. In strict mode the database
// must also be certain not to have ended the session yet. [Transport] checks both before each
// write to the connection. These cases remain:
//
//   - A pause after the last check and before the system call that writes, a few instructions
//     later. Then the write is late; TestTheStopThatRemains shows it. For a [Send] without
//     Transport, this window is the time between [Call.Ready] and its write.
//   - Bytes in a buffer of the network, or calls that the other side queues, when their owner
//     is overtaken.
//   - A database that ends a session by itself: in a failover, by an operator, or by a timeout of
//     transactions that are not idle. The running call ends within a second, and meanwhile the
//     next owner may send. If the connection to the database is silently dead, the call ends
//     before the database can have ended the session as idle.
//   - In strict mode, a failover to a replica that lacks the last commit, or a rebase of the
//     mark: the database has lost the record of the entered token.
//
// # Operations
//
// A call that changes something has an operation: a name that its caller chooses. The name is
// the same for each retry, under any claim. Strict records each operation in a table, see
// [Calls]: before the call is sent, and with the status of the answer. If the answer is known,
// the call is not sent again: [DoneError]. If the call may have been sent and has no answer, it
// is in doubt: [InDoubtError]. With [Options.Repeat], for an API with idempotency keys, it is
// sent again with the same [Key].
//
// Not every answer is a result. [DefaultOutcome] defines which statuses are final, which mean
// that nothing was done, and which leave the call in doubt. [Options.Statuses] overrides it.
package proxy
