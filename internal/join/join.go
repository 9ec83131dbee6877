// Package join makes one context of two. It copies no values: those are of the
// first only.
package join

import "context"

// Context is ctx, ended also when other ends, with other's cause. stop lets go of
// both, and is called when the result is not used any more.
func Context(ctx, other context.Context) (joined context.Context, stop func()) {
	joined, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() { unhook(); cancel(nil) }
}
