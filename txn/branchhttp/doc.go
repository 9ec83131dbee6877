// Package branchhttp carries the calls of package branch over HTTP. It does not retry a call: a
// coordinator does. It does not make a call take effect once: the participant's barrier absorbs
// repeated and late calls (see txn/barrier).
//
// A participant needs only [Handler], around a function that uses its barrier:
//
//	http.Handle("POST /charge", branchhttp.Handler(participant.Call)) // a barrier.Participant
//
// A step of a coordinator calls it by a [Caller]:
//
//	func charge(ctx context.Context, input []byte) ([]byte, error) {
//		return branchhttp.Caller{}.Post(ctx, "http://bank/charge", branch.From(ctx), input)
//	}
//
// docs/reference/conformance.md has the headers, the meaning of each status and the orders in
// which calls arrive.
package branchhttp
