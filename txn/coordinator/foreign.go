package coordinator

import (
	"errors"
	"maps"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Transactions of types that this process does not know: they are left, unread and
// unchanged but for their due time, to an owner of the shard that does; see offer.

// ErrForeign is returned by a [Protocol] for a transaction of a type that it does not know. It
// does not count as a failure.
var ErrForeign = errors.New("this process does not know transactions of this type")

// Selective is a [Protocol] that knows some types only. Transactions of others are not
// read, take no room, and are reported by the hook Foreign.
type Selective interface {
	Protocol
	// Drives reports whether it knows a type, of the form protocol:name. It does not
	// change.
	Drives(kind string) bool
}

// foreigner is a transaction that this process cannot drive.
type foreigner struct {
	kind     string
	shard    int
	position int64
	seen     time.Time
	given    int // how often its shard was given away for it since it last moved on
}

// mostForeigners bounds how many are counted.
const mostForeigners = 10_000

// knows reports whether a type is driven here.
func (c *Coordinator) knows(kind string) bool {
	p, err := c.protocol(kind)
	if err != nil {
		return false
	}
	s, selects := p.(Selective)
	return !selects || s.Drives(kind)
}

// leave counts a transaction that cannot be driven here, and reports it. For one that is
// due the shard is given away before long.
func (s *server) leave(head driver.Head, due bool) {
	c := s.coordinator
	c.mu.Lock()
	f, known := c.foreigners[head.Transaction]
	switch {
	case !known && len(c.foreigners) >= mostForeigners:
		f.given = mostGiven
	case head.Position > f.position:
		f.given = 0
	}
	f = foreigner{head.Type, s.shard.Number(), head.Position, c.options.Now(), f.given}
	if known || len(c.foreigners) < mostForeigners {
		c.foreigners[head.Transaction] = f
	}
	if due {
		s.offerAt(c.hold(f.given))
	}
	c.mu.Unlock()
	if h := c.options.Hooks.Foreign; h != nil {
		h(observe.CoordinatorForeign{Transaction: head.Transaction, Type: head.Type, Shard: f.shard, Given: f.given})
	}
}

// Foreign returns, by type, the number of unfinished transactions lately found in the shards
// served here whose type this process does not know. It is a gauge and counts up to 10,000. A
// type that stays in it for longer than a deployment takes needs a process that knows it. See
// Options.Yield for shards shared by processes with different types.
func (c *Coordinator) Foreign() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, before := map[string]int{}, c.options.Now().Add(-3*c.options.Recheck)
	c.prune()
	for _, f := range c.foreigners {
		if !f.seen.Before(before) {
			counts[f.kind]++
		}
	}
	return counts
}

// prune forgets what was not seen for so long that another process has driven it, though
// many others had their turn; a few where many are counted. It is for who has the lock.
func (c *Coordinator) prune() {
	turns := time.Duration(32)
	if len(c.foreigners) > mostForeigners/2 {
		turns = 4
	}
	before := c.options.Now().Add(-3 * c.options.Recheck)
	maps.DeleteFunc(c.foreigners, func(_ string, f foreigner) bool { return f.seen.Before(before.Add(-turns * c.hold(f.given))) })
}
