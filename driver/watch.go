package driver

import "context"

// Watcher is an optional interface of a lock driver that signals when to inspect locks again.
// Its signals are hints, not a history: one may represent several changes, or none.
type Watcher interface {
	// Watch calls changed with a name after the holder or the waiters of that name may have
	// changed, until ctx ends. The name starts with prefix; the empty name means any of them.
	// Watch calls changed("") first, once it misses no later change. It calls changed("") again
	// after every interruption in which it may have missed a change. A caller that reads an
	// [Inspector] after each signal sees every state that lasts.
	//
	// The expiry of a holder need not be reported: a waiter inspects the lock again when
	// Contender.Expires has passed.
	//
	// Watch blocks. It returns the cause of ctx, interlock.ErrClosed after Close, or a
	// Retryable error if it cannot watch; then it may be called again. Calls of changed come
	// from one goroutine at a time, and none comes after Watch has returned. changed must
	// return at once.
	Watch(ctx context.Context, prefix string, changed func(name string)) error
}
