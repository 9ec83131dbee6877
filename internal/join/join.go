// Package join makes a context end with a second one, and a wait end with a context. It
// copies no values of the second context.
package join

import "context"

// Context returns ctx that also ends when other ends, with other's cause. stop releases
// both; call it when the result is no longer used.
func Context(ctx, other context.Context) (joined context.Context, stop func()) {
	joined, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() { unhook(); cancel(nil) }
}
