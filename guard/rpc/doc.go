// Package rpc carries a claim's fencing token in the metadata of gRPC, as
// package guard/wire does in HTTP, and promises as little by itself: a service
// enters a guard with the token, and only the guard refuses one that is stale.
//
// The caller dials with [UnaryClient] and [StreamClient], and calls under a claim:
//
//	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		_, err := bank.Withdraw(wire.Under(ctx, c, ""), &pb.WithdrawRequest{Account: "42"})
//		return err // an *interlock.StaleTokenError if it was refused
//	})
//
// The service is made with [UnaryServer] and [StreamServer], and its methods have
// the passage, which guards take for a claim:
//
//	func (b *bank) Withdraw(ctx context.Context, r *pb.WithdrawRequest) (*pb.WithdrawReply, error) {
//		p, _ := wire.From(ctx)
//		err := fence.Tx(ctx, db, marks, p, p.Name(), …)
//		return reply, err // the interceptor makes a status of what a guard says
//	}
//
// # Codes
//
// A refusal is a status with a google.protobuf.Struct that has the fields of the
// problem that package guard/wire would answer with, tokens as texts:
//
//	InvalidArgument     token-missing, token-malformed, token-implausible
//	Unauthenticated     token-forged, token-untimely
//	PermissionDenied    wrong-resource
//	FailedPrecondition  token-stale, claim-over, call-in-doubt
//	AlreadyExists       call-done
//	Aborted             busy: nothing was done, and the same call may work later
//	Unknown             outcome-unknown
//
// A stale token is not Aborted, since clients are set up to repeat what is, and a
// stale token stays one.
//
// # Streams
//
// A stream is under one claim from its beginning. Each message that the service
// receives has to be about the token's resource; one that is not ends the stream.
// The service should enter its guard for each piece of work, not once: the claim
// can end while the stream goes on. The stream's context ends with what was left
// of the claim when it began, so streams that last longer are begun again.
package rpc
