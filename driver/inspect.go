package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// Inspector is an optional ability of a lock driver: it shows who holds and who
// waits, also for locks taken by other clients that share the layout. It takes
// no lock and changes nothing.
type Inspector interface {
	// Locks lists up to limit held or awaited names that start with prefix, in
	// byte order; more reports that there are others. A grant that an Acquire,
	// of any process, had returned before the call and that still stands is
	// shown, for Lock likewise: who has just acquired sees itself and everyone
	// before it.
	Locks(ctx context.Context, prefix string, limit int) (locks []LockState, more bool, err error)
	// Lock shows one name. A name that nobody holds or awaits has a nil Holder
	// and no waiters, and is not an error.
	Lock(ctx context.Context, name string) (LockState, error)
}

// LockState is one name as the backend shows it at one instant.
type LockState struct {
	Name    string
	Holder  *Contender  // nil if nobody holds it
	Waiters []Contender // in the order in which they will be served, where there is one
}

// Contender is a holder or a waiter.
type Contender struct {
	Owner string          // for a foreign client, what its layout tells of it
	Token interlock.Token // the holder's; 0 for a waiter or where there is none
	// Since is when it was granted, or for a waiter when it came, by the
	// backend's clock; zero if the backend does not tell.
	Since time.Time
	// Expires is how long the backend keeps it without renewal; 0 if it does
	// not expire by itself or is not known.
	Expires time.Duration
	// Foreign: written by another client in a layout that we share.
	Foreign bool
}
