// Package wire carries a claim's fencing token in an HTTP request. It refuses
// nothing by itself that a guard would refuse: a token that is well formed,
// and signed if it has to be, may still be stale, and the handler finds out by
// entering a guard with it. A request that is late in the network, or sent
// again by somebody who read it, is stopped by that guard and by nothing else.
//
// The caller:
//
//	client := &http.Client{Transport: &wire.Transport{}}
//	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		req, err := http.NewRequestWithContext(wire.Under(ctx, c, ""), "POST", url, body)
//		…
//		resp, err := client.Do(req)
//		…
//		if err := wire.Check(resp); err != nil {
//			return err // an *interlock.StaleTokenError if it was refused
//		}
//		… // the status, as of every answer
//	})
//
// The service:
//
//	http.Handle("/accounts/{id}", wire.Handler(account, http.HandlerFunc(withdraw), nil))
//
//	func withdraw(w http.ResponseWriter, r *http.Request) {
//		p, _ := wire.From(r.Context())
//		err := fence.Tx(r.Context(), db, marks, p, p.Name(), …)
//		if wire.Refuse(w, err) {
//			return
//		}
//		…
//	}
//
// # The header
//
// Between services that trust each other a token travels as it is, readable,
// with the resource that it is for, who holds the claim, and the milliseconds
// that were left of it when it was sent:
//
//	Interlock-Token: 890117171089408;resource=account/42;owner=web-1;remaining=8200
//
// The order is fixed and there is one way to write each, see [Pass]. Only the
// first two are needed, so that a request can be made by hand.
//
// A caller that is not trusted presents a token that somebody signed for it who
// is: the service that has the claim, see [Signer] and [Verifier]. That is a
// PASETO, version 4, purpose public (Ed25519), which libraries of other languages
// make and read as well. It is good for any bearer until it expires: use TLS,
// and signatures that expire soon. A [Verifier] takes nothing unsigned.
//
// # Answers
//
// Every refusal is a problem of RFC 9457 whose type names the [Reason], and none
// is a server error unless nobody knows what happened:
//
//	428 token-missing      there is no token
//	400 token-malformed    it cannot be read, or there are two
//	400 token-implausible  it lies further ahead of the clock than any can
//	401 token-forged       it is not signed by a key that is accepted
//	401 token-untimely     its signature has expired, or lasts too long, or is of the future
//	403 wrong-resource     it is for another resource, or for another audience
//	412 token-stale        a higher one has entered; the body has both: seen, got
//	412 claim-over         the claim ended before the work was done
//	503 busy               nothing was done, and the same request may work later
//	500 outcome-unknown    it may have been done
//	409 call-done          only of guard/proxy: it was done before
//	409 call-in-doubt      only of guard/proxy: it may have been done before
//
// # An absurd token
//
// A token that is not signed and lies more than [Options].MaxAhead, a minute by
// default, beyond the clock of the service is refused before a guard sees it. A
// signed one may lie [interlock.MaxAhead] ahead, and so may any token that reaches
// a guard, by the clock of its store. One that lies less far ahead looks like an
// honest one: a caller that sends it keeps everybody out whose token is lower, for
// as long as it is in the future, or until an operator rebases the mark, as package
// guard/fence has it. Callers that must not be able to do that need signed tokens.
package wire
