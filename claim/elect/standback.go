package elect

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/process"
)

// defersToOthers reports whether an elected candidate yields to nominee. It does if nominee is
// another candidate, not known to have left, whose nomination is at most StandBack old by this
// process's clock.
func (e *Election) defersToOthers(ctx context.Context, name, nominee string, by interlock.Token) bool {
	if nominee == "" || nominee == e.options.Identity {
		return false
	}
	if boottime.Now().Sub(e.firstSeen(name, by)) >= e.options.StandBack {
		return false
	}
	if waits, err := e.waits(ctx, name, nominee); err == nil && !waits {
		return false
	}
	return true
}

// firstSeen returns when this process first saw the nomination of a term. Each candidate
// measures by itself, so clocks are never compared.
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

// waits reports whether a candidate is in the queue. If the driver cannot show the queue, waits
// returns true: a backend that serves waiters in no order need not know them.
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
		if process.IdentityOf(w.Owner) == identity {
			return true, nil
		}
	}
	return false, nil
}
