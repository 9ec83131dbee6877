package elect

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// standsBack decides whether a candidate that was granted the leadership gives
// way to nominee: if it is another one, was nominated no longer ago than
// StandBack as far as we know, and is not known to have gone.
func (e *Election) standsBack(ctx context.Context, name, nominee string, by interlock.Token) bool {
	if nominee == "" || nominee == e.options.Identity {
		return false
	}
	if boottime.Now().Sub(e.firstSeen(name, by)) >= e.options.StandBack {
		return false
	}
	if waits, err := e.waits(ctx, name, nominee); err == nil && !waits {
		return false
	}
	if f := e.options.Hooks.StoodBack; f != nil {
		f(StoodBack{Name: name, Nominee: nominee})
	}
	return true
}

// firstSeen is when we first saw that the leader of a term nominated someone.
// Each candidate counts for itself, so that no clock is compared with another.
func (e *Election) firstSeen(name string, by interlock.Token) boottime.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.nominations[name]
	if n.token.Counter() != by.Counter() {
		n = nomination{token: by, seen: boottime.Now()}
		e.nominations[name] = n
	}
	return n.seen
}

// waits reports whether a candidate is in the queue. Where the driver cannot
// show that it is taken to be: waiters that are not served in an order need not
// be known to the backend.
func (e *Election) waits(ctx context.Context, name, identity string) (bool, error) {
	inspector, ok := e.driver.(driver.Inspector)
	if !ok || !e.fifo {
		return true, nil
	}
	state, err := inspector.Lock(ctx, name)
	if err != nil {
		return false, err
	}
	for _, w := range state.Waiters {
		if identityOf(w.Owner) == identity {
			return true, nil
		}
	}
	return false, nil
}
