// Package proxy makes calls to a resource that cannot check fencing tokens, such
// as somebody else's API, so that the call of a former owner is not sent after
// that of a newer one. It cannot recall a call that was sent: one that was on
// its way, or in a queue of the other side, when its owner lost the claim may
// take effect later than that of the next owner. It does not make a call take
// effect once either; with an idempotency key the other side does.
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
// [Handler] is the same as a reverse proxy, for callers elsewhere that send their
// tokens as package guard/wire has it.
//
// # Two strengths
//
// Strict, by [NewRecorded], keeps marks in a SQL database. The mark is raised and
// committed before anything is sent, so that it outlasts a crash. Then it is
// entered again, and its row stays locked while the call is made: calls for a
// resource are made one at a time, by however many processes share the
// database. A transaction stays open for as long as the call takes, and a
// statement each second keeps its session alive; the session of a process that
// stops is ended by the database within two thirds of what was left of the
// claim.
//
// Loose, by [NewUnrecorded], keeps marks in Redis, etcd or another [fence.Store].
// Calls that pass through one process are made one at a time, and none after
// that of a newer owner. Between processes there is a window between Enter and
// the call: there, only the clock of the claim keeps a former owner from sending.
//
// # What remains possible
//
// A call is sent if, right before, the claim is valid and, when strict, the
// session cannot have been ended yet. [Transport] looks at both before each write
// to the connection, so a process that is stopped anywhere before sends nothing
// when it goes on. What remains:
//
//   - a stop after the last look and before the system call that writes, a few
//     instructions later: what is written then arrives late. TestTheStopThatRemains
//     shows it. A [Send] that does not use Transport has as much time between
//     [Call.Ready] and its write as it takes;
//   - bytes that are in a buffer of the network, or calls that the other side
//     queues, when their owner is overtaken;
//   - a database that ends a session by itself, as in a failover, or by an
//     operator, or by an idle time that the session was given before and that is
//     below a second: the call that was on its way ends within a second,
//     and meanwhile the next owner may send. One whose connection to the database
//     is dead without a word ends before the database can have ended it;
//   - strict, after a failover to a replica that lacks the last commit, or in a
//     resource whose mark was rebased: the database has forgotten who entered.
//
// # Operations
//
// A call that changes something has an operation: a name that its caller gives
// it, the same whenever it tries again, under whichever claim. Strict keeps a
// record of each in a table, see [Calls]: before it is sent, and with the status
// of the answer. A call whose answer is known is not made again: [DoneError]. One
// that may have been sent and was not answered is in doubt: [InDoubtError]; with
// [Options.Repeat], for an API that takes an idempotency key, it is sent again
// with the same [Key].
//
// Not every answer is a result: [DefaultOutcome] is the table that says which
// statuses are final, which say that nothing was done, and which leave the call in
// doubt. [Options.Statuses] changes it for an API that defines them otherwise.
package proxy
