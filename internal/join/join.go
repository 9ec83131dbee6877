// Package join ends one thing with another: a context with a second one, and a wait with a
// context. It copies no values of the second context.
package join

import "context"

// Context is ctx, ended also when other ends, with other's cause. stop lets go of
// both, and is called when the result is not used any more.
func Context(ctx, other context.Context) (joined context.Context, stop func()) {
	joined, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() { unhook(); cancel(nil) }
}
