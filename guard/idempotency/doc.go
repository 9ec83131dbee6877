// Package idempotency lets a request that is made again take effect once, and
// answers it as the first time. It does not undo what a handler did outside of a
// phase before it failed, does not make a call to another system happen once, and
// remembers a key no longer than its answer is kept. What it gives: no two attempts
// at a request commit the same phase, an answer is durable before it is shown, and
// all who ask are shown the same one.
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
// [Store.Do] is the same for what does not come by HTTP. A [Completer] finishes
// what was begun and whose client never came back, a [Reaper] removes what is old.
//
// # Attempts
//
// A request is claimed in one statement, under the key that its client chose. The process that
// claims it has a lease by the store's clock, which is renewed as long as the handler
// runs; another attempt is let in when the first has failed, or when its lease has
// lapsed. The lease only saves work. What makes an attempt harmless that stood still
// and wakes up is its owner's name, which each phase and the answer are recorded
// under: once another attempt has begun, nothing is recorded under the old one.
//
// What a handler does outside of phases is not protected by that. It is done by each
// attempt again, and a process that is stopped may do it beside its successor.
//
// # Stores
//
// An [SQL] keeps records beside the data: a [Phase] is done together with its record.
// On key-value stores there is [Step] alone, whose effect comes before its record: a
// crash between the two repeats it. They are for requests whose effect is safe to
// repeat, or elsewhere, under a key of its own; the answer is replayed in any case.
// A key-value store that loses writes forgets requests with them.
//
// # Databases
//
// PostgreSQL and MariaDB have the same promises. A phase's transaction has the level
// of the pool. On PostgreSQL at repeatable read or above, a phase that outlasts a
// renewal of the lease, a third of it, cannot be recorded and is run again, up to five
// times: give such requests a longer lease. A process that is stopped within a phase
// keeps rows from its successor for two thirds of a lease at most, on MariaDB for a
// second at least; one that is stopped between the statement of another step and its
// COMMIT, for two seconds. The server ends its session then.
//
// A database whose clock is set forward lets leases lapse early: attempts then meet,
// and only what is done in phases is done once. One whose clock is set back makes
// retries wait for as long as it was set back.
package idempotency
