package coordinator

import (
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
)

// A process with many shards asks its store once in Options.Poll for all of them which
// have something that is due, and then those only: whichever of their servers looks at
// its clock first asks, and passes the answer to the others.

// scout asks for all servers, unless one of them has done so within a poll.
func (s *server) scout() error {
	c := s.coordinator
	now := c.options.Now()
	shards := c.scouting(now)
	if shards == nil {
		return nil
	}
	due, err := c.journal.DueShards(s.ctx, shards, now)
	if err != nil {
		return s.lasting(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, number := range due {
		if other := c.servers[number]; other != nil {
			signal(other.due)
		}
	}
	return nil
}

// scouting is the shards to ask for now, if it is time.
func (c *Coordinator) scouting(now time.Time) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := now.Sub(c.scouted); since >= 0 && since < c.options.Poll { // below zero the clock was set back
		return nil
	}
	c.scouted = now
	return slices.Sorted(maps.Keys(c.servers))
}

// lasting tells of a failure of the store, and is that failure if asking again is of no
// use, else nil.
func (s *server) lasting(err error) error {
	s.failed("", err)
	if s.ctx.Err() != nil || lost(err) || interlock.Kind(err) == interlock.Bug {
		return err
	}
	return nil
}
