package memory

import (
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
)

// These methods are the requests of the protocol: each takes one step of the table
// under the lock and notifies the new holders.

// arrive returns the counter if the caller holds the name now, else its place.
func (s *Space) arrive(c *call, ttl time.Duration) (counter int64, place driver.Place, err error) {
	s.mu.Lock()
	defer s.unlock()
	now, name, owner := boottime.Now(), c.req.Name, c.req.Owner
	s.notify(s.table.expire(now))
	if queue := s.table.names[name]; c.req.NoWait && len(queue) > 0 && s.table.find(name, owner) == nil {
		return 0, place, heldBy(now, queue[0])
	}
	who, effects := s.table.arrive(now, name, owner, now.Add(ttl))
	s.notify(effects)
	if who.counter > 0 {
		who.expires = now.Add(c.req.Lease(ttl))
	}
	if who.counter > 0 {
		return who.counter, place, nil
	}
	if c.wake == nil {
		c.wake = make(chan struct{}, 1)
	}
	s.wakes[owner] = c.wake
	return 0, driver.Place{Ahead: s.table.ahead(who), Holder: s.table.names[name][0].owner}, nil
}

// renew reports whether the caller still holds or waits.
func (s *Space) renew(c *call, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.unlock()
	now := boottime.Now()
	who, effects := s.table.renew(now, c.req.Name, c.req.Owner, now.Add(ttl))
	s.notify(effects)
	if who == nil {
		s.notify([]granted{{c.req.Name, c.req.Owner}}) // a waiter whose place has expired waits again
	}
	return who != nil
}

func (s *Space) leave(name, owner string) {
	s.mu.Lock()
	defer s.unlock()
	delete(s.wakes, owner)
	s.notify(s.table.leave(boottime.Now(), name, owner))
}

// Revoke takes name away from its holder, like an operator who deletes the lock's
// key. The holder notices at its next renewal.
func (s *Space) Revoke(name string) {
	s.mu.Lock()
	defer s.unlock()
	s.notify(s.table.revoke(boottime.Now(), name))
}

func (s *Space) show(name string) driver.LockState {
	s.mu.Lock()
	defer s.unlock()
	now := boottime.Now()
	s.notify(s.table.expire(now))
	return s.state(now, name)
}

func (s *Space) list(prefix string, limit int) (locks []driver.LockState, more bool) {
	s.mu.Lock()
	defer s.unlock()
	now := boottime.Now()
	s.notify(s.table.expire(now))
	var names []string
	for name := range s.table.names {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	shown := min(len(names), max(limit, 0))
	for _, name := range names[:shown] {
		locks = append(locks, s.state(now, name))
	}
	return locks, len(names) > shown
}

func (s *Space) state(now boottime.Instant, name string) driver.LockState {
	state := driver.LockState{Name: name}
	for i, c := range s.table.names[name] {
		who := driver.Contender{Owner: c.owner, Since: wall(now, c.since), Expires: c.expires.Sub(now)}
		if i == 0 {
			who.Token, _ = interlock.NewToken(c.counter, 0) // valid: it was granted with this counter
			state.Holder = &who
			continue
		}
		state.Waiters = append(state.Waiters, who)
	}
	return state
}

// notify wakes the waiting calls of owners.
func (s *Space) notify(effects []granted) {
	for _, g := range effects {
		if wake := s.wakes[g.owner]; wake != nil {
			delete(s.wakes, g.owner)
			hints.Signal(wake)
		}
	}
}

// unlock ends a step under mu: it reports changes to watchers, and sets the timer of
// the next expiry.
func (s *Space) unlock() {
	defer s.mu.Unlock()
	s.announce()
	at, ok := s.table.next()
	switch {
	case !ok && s.sweep != nil:
		s.sweep.Stop()
	case ok && s.sweep == nil:
		s.sweep = time.AfterFunc(at.Sub(boottime.Sent()), s.expire)
	case ok:
		s.sweep.Reset(at.Sub(boottime.Sent()))
	}
}

func (s *Space) expire() {
	s.mu.Lock()
	defer s.unlock()
	s.notify(s.table.expire(boottime.Now()))
}

// wall converts an instant to wall-clock time.
func wall(now, at boottime.Instant) time.Time { return time.Now().Add(at.Sub(now)) }
