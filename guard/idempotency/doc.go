// Package idempotency lets a retried request take effect once, and repeats its first answer. It
// does not undo effects that a failed handler had outside of a phase. It does not make a call
// to another system happen once, and forgets a key when its answer is removed. Its promises: no
// two attempts at a request commit the same phase. An answer is durable before it is sent, and
// all retries receive the same one.
//
//	records := idempotency.NewSQL(postgres.Pool(pool), idempotency.Table{})
//	store, err := idempotency.New(records, nil)
//	…
//	orders := func(w http.ResponseWriter, r *http.Request) {
//		charge, err := idempotency.Phase(r.Context(), records, "charge",
//			func(ctx context.Context, tx pgx.Tx) (Charge, error) {
//				// read, decide, write: all of it and the name of the phase, or nothing
//			})
//		…
//	}
//	http.Handle("POST /orders", idempotency.Handler(store, tenant, http.HandlerFunc(orders), nil))
//
// [Store.Do] does the same for requests that do not arrive by HTTP. A [Completer] finishes
// requests whose client did not retry. A [Reaper] removes old answers.
//
// # Attempts
//
// One statement claims a request, under the key that its client chose. The process that claims
// it has a lease by the store's clock, and renews the lease while the handler runs. Another
// attempt can begin when the first has failed, or when its lease has expired. Once another
// attempt has begun, nothing is recorded under the former one, so an attempt that was paused
// and continues is harmless.
//
// Effects outside of phases are not protected: each attempt repeats them, and a paused process
// may repeat them concurrently with its successor.
//
// # Stores
//
// An [SQL] keeps records in the database of the data: a [Phase] commits its effect and its
// record together. Key-value stores have only [Step], whose effect happens before its record:
// after a crash between the two, the effect is repeated. Use them for requests whose effect is
// safe to repeat, or happens in another system under its own key. If a key-value store loses
// writes, it forgets the requests too.
//
// # Databases
//
// PostgreSQL and MariaDB have the same promises. The transaction of a phase has the isolation
// level of the pool. On PostgreSQL at REPEATABLE READ or above, a phase that outlasts a renewal
// of the lease (a third of the lease) cannot be recorded. It runs again, up to five times: give
// such requests a longer lease.
//
// If a process is paused within a phase, its successor waits for the locked rows for at most
// two thirds of a lease. On MariaDB that wait is at least a second. If a process is paused
// between the statement of another step and its COMMIT, the successor waits for at most two
// seconds. Then the server ends the session.
//
// If a database's clock is set forward, leases expire early. Attempts may then overlap, and
// only phases take effect once. If it is set back, retries wait for as long as it was set back.
package idempotency
