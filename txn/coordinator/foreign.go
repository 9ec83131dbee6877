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

// foreignTransaction is one that this process cannot drive.
type foreignTransaction struct {
	kind     string
	shard    int
	position int64
	seen     time.Time
	yields   int // of its shard for it since its last append
}

// maxForeign bounds how many are counted.
const maxForeign = 10_000

// knows reports whether this process drives a type.
func (c *Coordinator) knows(kind string) bool {
	p, err := c.protocol(kind)
	if err != nil {
		return false
	}
	s, selects := p.(Selective)
	return !selects || s.Drives(kind)
}

// reportForeign counts a transaction that this process cannot drive, and reports it. If it is due, a
// yield of the shard is scheduled.
func (s *server) reportForeign(head driver.Head, due bool) {
	c := s.coordinator
	c.mu.Lock()
	f, known := c.foreign[head.Transaction]
	switch {
	case !known && len(c.foreign) >= maxForeign:
		f.yields = maxYields
	case head.Position > f.position:
		f.yields = 0
	}
	f = foreignTransaction{head.Type, s.shard.Number(), head.Position, c.options.Now(), f.yields}
	if known || len(c.foreign) < maxForeign {
		c.foreign[head.Transaction] = f
	}
	if due {
		s.scheduleYield(c.keepFor(f.yields))
	}
	c.mu.Unlock()
	if h := c.options.Hooks.Foreign; h != nil {
		h(observe.CoordinatorForeign{Transaction: head.Transaction, Type: head.Type, Shard: f.shard, Given: f.yields})
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
	for _, f := range c.foreign {
		if !f.seen.Before(before) {
			counts[f.kind]++
		}
	}
	return counts
}

// prune forgets transactions not seen for so long that another process must have driven them. It waits
// longer if few are counted. The caller holds the lock.
func (c *Coordinator) prune() {
	turns := time.Duration(32)
	if len(c.foreign) > maxForeign/2 {
		turns = 4
	}
	before := c.options.Now().Add(-3 * c.options.Recheck)
	maps.DeleteFunc(c.foreign, func(_ string, f foreignTransaction) bool {
		return f.seen.Before(before.Add(-turns * c.keepFor(f.yields)))
	})
}
