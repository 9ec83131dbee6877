// Package wire carries a claim's fencing token in an HTTP request. It does not replace a guard.
// A token that is well formed, and signed if required, may still be stale; the handler must
// enter a guard with it. Only that guard stops a request that was delayed in the network, or
// replayed by someone who read it.
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
// Between services that trust each other, a token is sent as readable text. The text has the
// resource, the holder of the claim, and the milliseconds that the claim had left when the
// request was sent:
//
//	Interlock-Token: 890117171089408;resource=account/42;owner=web-1;remaining=8200
//
// The order is fixed, and each Pass has exactly one text, see [Pass]. Only the first two parts
// are required, so a request can be written by hand.
//
// An untrusted caller presents a token that was signed for it by the service that has the
// claim, see [Signer] and [Verifier]. The signed token is a PASETO, version 4, purpose public
// (Ed25519), which libraries of other languages can read and write. Any bearer can use it until
// it expires: use TLS, and signatures that expire soon. A [Verifier] accepts no unsigned
// tokens.
//
// # Answers
//
// Every refusal is a problem of RFC 9457 whose type contains the [Reason]. It is a server error
// only if the outcome is unknown or the same request may work later:
//
//	428 token-missing      there is no token
//	400 token-malformed    it cannot be read, or there are two
//	400 token-implausible  it is too far ahead of the clock
//	401 token-forged       it is not signed by an accepted key
//	401 token-untimely     its signature has expired, lasts too long, or is in the future
//	403 wrong-resource     it is for another resource, or for another audience
//	412 token-stale        a higher one has entered; the body has both: seen, got
//	412 claim-over         the claim ended before the work was done
//	503 busy               nothing was done, and the same request may work later
//	500 outcome-unknown    the work may have been done
//	409 call-done          only of guard/proxy: the call was made before
//	409 call-in-doubt      only of guard/proxy: the call may have been made before
//
// # Tokens in the future
//
// If an unsigned token is more than [Options].MaxAhead (a minute by default) ahead of the
// service's clock, it is refused before a guard sees it. A signed token may be
// [interlock.MaxAhead] ahead. A guard has the same bound for any token, by the clock of its
// store. A caller that sends a token within these bounds excludes all holders with lower
// tokens, until the clock reaches the token, or an operator rebases the mark (package
// guard/fence). If callers must not be able to do that, require signed tokens.
package wire
