// Package rpc carries a claim's fencing token in the metadata of gRPC, as package
// guard/wire does in HTTP. It does not reject stale tokens: the service must enter
// a guard with the token, and the guard does.
//
// The caller dials with [UnaryClient] and [StreamClient], and calls under a claim:
//
//	err := locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		_, err := bank.Withdraw(wire.Under(ctx, c, ""), &pb.WithdrawRequest{Account: "42"})
//		return err // an *interlock.StaleTokenError if it was refused
//	})
//
// The service uses [UnaryServer] and [StreamServer]. Its methods get the passage,
// which guards accept as a claim:
//
//	func (b *bank) Withdraw(ctx context.Context, r *pb.WithdrawRequest) (*pb.WithdrawReply, error) {
//		p, _ := wire.From(ctx)
//		err := fence.Tx(ctx, db, marks, p, p.Name(), …)
//		return reply, err // the interceptor converts a guard's error to a status
//	}
//
// # Codes
//
// A refusal is a status with a google.protobuf.Struct, which has the fields of the
// problem of package guard/wire, with tokens as texts:
//
//	InvalidArgument     token-missing, token-malformed, token-implausible
//	Unauthenticated     token-forged, token-untimely
//	PermissionDenied    wrong-resource
//	FailedPrecondition  token-stale, claim-over, call-in-doubt
//	AlreadyExists       call-done
//	Aborted             busy: nothing was done, and the same call may work later
//	Unknown             outcome-unknown
//
// # Streams
//
// A stream is under one claim from its beginning. Each message that the service
// receives must be about the token's resource; any other ends the stream. The service
// should enter its guard for each piece of work. The stream's context ends after the
// time that the claim had left at its beginning; begin a longer stream again.
package rpc
