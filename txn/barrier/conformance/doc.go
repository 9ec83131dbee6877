// Package conformance plays the messages of a coordinator to a participant over HTTP,
// in every order, twice, late and two at once, and judges its answers and its effects.
// It does not show that a participant keeps what it has promised over a crash, nor
// that its own business is right: it judges the barrier in front of the business. The
// answers that it expects are published in docs/reference/conformance.md, which is made from the
// table that it judges by.
//
//	report, err := conformance.Run(ctx, conformance.Options{URL: "http://127.0.0.1:8080/stock"})
//	if err != nil {
//		return err // the participant could not be reached
//	}
//	for _, f := range report.Failures {
//		fmt.Println(f) // tcc: cancel, try: message 2, try: expected refused (held 0, confirmed 0), got done (held 1, confirmed 0)
//	}
//
// # What a participant has to offer
//
// One address for the messages, which come as package txn/branch has it: a POST whose
// headers say which transaction, branch and step, and with Interlock-Operation what to
// do. The participant keeps accounts in its own database or memory, made when they are
// first named, and the body of every message, also of those that undo, is
//
//	{"account": "a name", "amount": 1, "capacity": 1}
//
// A do or a try is refused (409) by the business, of which this is all, if what the
// account holds, what it has confirmed and the amount are more than the capacity.
// Otherwise a try holds the amount, a confirm confirms what is held, and a cancel
// lets it go; prepare, commit and rollback are the same. A do confirms at once, and an
// undo takes that back. A do, try or prepare should answer with something that it would
// not make up a second time, such as {"hold": a random number}, since a repeated one
// has to have the same answer as the first.
//
// The same address, or another, tells by GET with ?account=NAME what the account has,
// zeros for one that it does not know:
//
//	{"held": 0, "confirmed": 1}
//
// That is what the coordinator cannot see, and where a barrier that is missing shows.
package conformance
