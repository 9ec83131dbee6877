// Package conformance sends the messages of a coordinator to a participant over HTTP, and checks
// its answers and its effects. It sends them in every order, twice, late and two at once. It
// does not test durability over a crash, nor the business behind the barrier. The expected
// answers are in docs/reference/conformance.md, which is generated from the same table.
//
//	report, err := conformance.Run(ctx, conformance.Options{URL: "http://127.0.0.1:8080/stock"})
//	if err != nil {
//		return err // the participant could not be reached
//	}
//	for _, f := range report.Failures {
//		fmt.Println(f) // tcc: cancel, try: message 2, try: expected refused (held 0, confirmed 0), got done (held 1, confirmed 0)
//	}
//
// # Requirements of a participant
//
// One address receives the messages: POSTs with the headers of txn/branchhttp. The
// participant keeps accounts in its database or memory, and creates them when a message
// first names them. The body of every message, also of those that undo, is
//
//	{"account": "a name", "amount": 1, "capacity": 1}
//
// The business refuses a do, a try or a prepare (409) if held, confirmed and the amount
// together exceed the capacity. Otherwise a try holds the amount, a confirm confirms it,
// and a cancel releases it; prepare, commit and rollback do the same. A do confirms at
// once, and an undo reverses that. A do, try or prepare should answer with a value that
// differs each time, such as {"hold": a random number}, since a repeated one must have
// the first one's answer.
//
// The same address, or another, answers a GET with ?account=NAME with the account's
// effects, zeros for an unknown account:
//
//	{"held": 0, "confirmed": 1}
//
// The coordinator cannot see these; they show whether a barrier is missing.
package conformance
