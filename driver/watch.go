package driver

import "context"

// Watcher is an optional ability of a lock driver: it tells when to look again.
// What it tells are hints and not a history: one hint may stand for several
// changes, and one may come without any.
type Watcher interface {
	// Watch calls changed with a name that starts with prefix after that name's
	// holder or waiters may have changed, until ctx ends; the empty name means
	// any of them. changed("") is called first, once nothing that happens from
	// then on is missed, and again after every interruption during which a
	// change may have been missed. A reader who looks at an [Inspector] when
	// called, and not before, sees every state that lasts.
	//
	// A holder that expires without anybody's doing need not be reported: a waiter
	// looks again when its Contender.Expires has passed.
	//
	// It blocks until it returns ctx's cause, interlock.ErrClosed after Close,
	// or why it cannot watch (Retryable: it may be called again). Calls of
	// changed come from one goroutine at a time and none after it returned;
	// changed must return at once.
	Watch(ctx context.Context, prefix string, changed func(name string)) error
}
