package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// Inspector is an optional interface of a lock driver that shows holders and waiters. It
// includes locks of other clients that share the layout. It acquires no lock and changes
// nothing.
type Inspector interface {
	// Locks lists up to limit names that start with prefix and are held or waited for, in byte
	// order. The result more reports whether there are others. Locks and Lock show every
	// current grant that an Acquire of any process had returned before the call. So a process
	// that has just acquired sees itself and all contenders before it.
	Locks(ctx context.Context, prefix string, limit int) (locks []LockState, more bool, err error)
	// Lock returns the state of one name. If the name has no holder and no waiters, Holder is
	// nil and the error is nil.
	Lock(ctx context.Context, name string) (LockState, error)
}

// LockState is the state of one name at one instant, as the backend shows it.
type LockState struct {
	Name    string
	Holder  *Contender  // nil if the name is free
	Waiters []Contender // in queue order if the backend has one
}

// Contender is a holder or a waiter.
type Contender struct {
	Owner string          // for a foreign client, as far as its layout identifies it
	Token interlock.Token // 0 for a waiter, or if the lock has no tokens
	// Since is when the holder was granted the lock or the waiter arrived, by the backend's
	// clock. It is zero if the backend does not record it.
	Since time.Time
	// Expires is how long the backend keeps the entry without renewal. It is 0 if the entry
	// does not expire or if the time is not known.
	Expires time.Duration
	// Foreign reports that another client wrote the entry, in a layout that Interlock shares.
	Foreign bool
}

// NextExpiry returns how soon the first holder's entry expires without renewal; 0 if none does, or
// if no time is known.
func NextExpiry(locks []LockState) (next time.Duration) {
	for _, l := range locks {
		if h := l.Holder; h != nil && h.Expires > 0 && (next == 0 || h.Expires < next) {
			next = h.Expires
		}
	}
	return next
}
